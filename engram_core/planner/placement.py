"""Placement: which kind of memory holds which rows, and what share of reads it answers.

Every kind takes the hottest rows that no faster one has: the accelerator's cache, host memory, an
extra memory node, an SSD. The accelerator's rows are copies in bf16: the kinds below it hold the
whole shard. Host memory and the extra node hold the table's records where all of them fit; before
an SSD they are a cache, which keeps rows in bf16 and a map of all rows. Knows no rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from engram_core.planner.access import AccessPattern
from engram_core.planner.hosts import HostBudget
from engram_core.planner.shape import MemoryShape
from engram_core.store.hot_size import cache_bytes, slots_in

KINDS = ("device", "dram", "extra", "ssd", "nowhere")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where rows lie on the host with the largest shard, and who answers reads.

    Attributes:
        shard_heads: heads of each order on that host.
        rows: rows that each kind holds there; ``nowhere``: rows that no kind has room for.
        bytes: what they occupy there.
        is_cached: whether host memory and the extra node are a cache.
        shares: share of ALL reads that each kind answers, on whichever host; their sum is 1.
    """

    shard_heads: int
    rows: Mapping[str, int]
    bytes: Mapping[str, int]
    is_cached: bool
    shares: Mapping[str, float]

    @property
    def fits(self) -> bool:
        """Whether every row has a place."""
        return self.rows["nowhere"] == 0


def place(shape: MemoryShape, hosts: HostBudget, access: AccessPattern) -> Placement:
    """Fill the kinds of memory from the fastest to the slowest."""
    heads = -(-shape.num_heads // hosts.num_hosts)
    slot = shape.record.output_bytes
    device = min(shape.total_rows, hosts.device_memory // slot)
    on_device = device == shape.total_rows  # nothing is ever read from below
    fits = shape.stored_bytes(heads) <= hosts.dram + hosts.extra_memory
    is_cached = hosts.has_ssd and not fits and not on_device
    held = (_cached if is_cached else _stored)(shape, hosts, heads)
    rows = {"device": device} | {kind: number for kind, (number, _) in held.items()}
    if on_device:
        rows["nowhere"] = 0
    sizes = {"device": device * slot} | {kind: size for kind, (_, size) in held.items()}
    return Placement(heads, rows, sizes, is_cached, _shares(shape, rows, heads, access))


def _stored(shape: MemoryShape, hosts: HostBudget, heads: int) -> dict[str, tuple[int, int]]:
    """Rows and bytes of each kind: the table's records, as many as fit."""
    record, shard = shape.record, sum(shape.shard_rows(heads))
    whole = shape.stored_bytes(heads)  # every layer's last page is its own
    if whole <= hosts.dram:
        return {"dram": (shard, whole), "extra": (0, 0), "ssd": (0, 0), "nowhere": (0, 0)}
    dram = min(shard, record.rows_in(hosts.dram))
    extra = min(shard - dram, record.rows_in(hosts.extra_memory))
    if whole <= hosts.dram + hosts.extra_memory:
        extra = shard - dram
    rest = shard - dram - extra
    sizes = {"dram": dram, "extra": extra, "ssd": 0, "nowhere": rest}
    return {kind: (number, record.stored_bytes(number)) for kind, number in sizes.items()}


def _cached(shape: MemoryShape, hosts: HostBudget, heads: int) -> dict[str, tuple[int, int]]:
    """Rows and bytes of each kind: caches before the shard on an SSD."""
    dram, dram_bytes = _cache(shape, hosts.dram, heads)
    both, both_bytes = _cache(shape, hosts.dram + hosts.extra_memory, heads)
    return {
        "dram": (dram, dram_bytes),
        "extra": (both - dram, both_bytes - dram_bytes),
        "ssd": (sum(shape.shard_rows(heads)), shape.stored_bytes(heads)),
        "nowhere": (0, 0),
    }


def _cache(shape: MemoryShape, budget: int, heads: int) -> tuple[int, int]:
    """Rows and bytes of the layers' caches, each with the part of the budget that its rows are."""
    shard, row_dim = shape.shard_rows(heads), shape.record.row_dim
    slots = [slots_in(budget * rows // sum(shard), rows, row_dim) for rows in shard]
    sizes = [cache_bytes(rows, row_dim, n) for rows, n in zip(shard, slots, strict=True) if n]
    return sum(slots), sum(sizes)


def _shares(
    shape: MemoryShape, rows: Mapping[str, int], heads: int, access: AccessPattern
) -> dict[str, float]:
    """Reads by rank: a shard is read like the whole, so its rows stand for as many elsewhere."""
    scale = shape.num_heads / heads
    shard = sum(shape.shard_rows(heads))
    hottest: float = rows["device"]
    reached = [access.share(hottest)]
    held = 0
    for kind in ("dram", "extra"):
        held += rows[kind]
        hottest += rows[kind] * scale
        share = 1.0 if held == shard else access.share(hottest)
        reached.append(max(reached[-1], share))  # sums round: a share is never below 0
    reached.append(1.0 if rows["nowhere"] == 0 else reached[-1])
    steps = [reached[0], *(b - a for a, b in pairwise(reached))]
    return dict(zip(KINDS, [*steps, 1.0 - reached[-1]], strict=True))
