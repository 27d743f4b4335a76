"""Placement: which kind of memory holds which rows, and what share of reads it answers.

Every kind takes the hottest rows that no faster one has: the accelerator's cache, host memory, an
extra memory node, an SSD. The accelerator's rows are copies: the kinds below it hold the whole
shard. Knows no rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from engram_core.planner.access import AccessPattern
from engram_core.planner.hosts import HostBudget
from engram_core.planner.shape import MemoryShape

KINDS = ("device", "dram", "extra", "ssd", "nowhere")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where rows lie on the host with the largest shard, and who answers reads.

    Attributes:
        shard_heads: heads of each order on that host.
        rows: rows that each kind holds there; ``nowhere``: rows that no kind has room for.
        shares: share of ALL reads that each kind answers, on whichever host; their sum is 1.
    """

    shard_heads: int
    rows: Mapping[str, int]
    shares: Mapping[str, float]

    @property
    def fits(self) -> bool:
        """Whether every row has a place."""
        return self.rows["nowhere"] == 0


def place(shape: MemoryShape, hosts: HostBudget, access: AccessPattern) -> Placement:
    """Fill the kinds of memory from the fastest to the slowest."""
    heads = -(-shape.num_heads // hosts.num_hosts)
    rows = _rows_held(shape, hosts, heads)
    return Placement(heads, rows, _shares(shape, rows, heads, access))


def _rows_held(shape: MemoryShape, hosts: HostBudget, heads: int) -> dict[str, int]:
    record, shard = shape.record, sum(shape.shard_rows(heads))
    device = min(shape.total_rows, hosts.device_memory // record.bytes)
    dram = min(shard, record.rows_in(hosts.dram))
    extra = min(shard - dram, record.rows_in(hosts.extra_memory))
    rest = shard - dram - extra
    on_device = device == shape.total_rows  # nothing is ever read from below
    ssd = shard if hosts.has_ssd and rest and not on_device else 0
    nowhere = 0 if ssd or on_device else rest
    return {"device": device, "dram": dram, "extra": extra, "ssd": ssd, "nowhere": nowhere}


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
