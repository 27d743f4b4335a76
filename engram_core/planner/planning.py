"""plan: a memory, hosts and a target in; sizes, places, needs and the bottleneck out.

A pure function: no file, no clock, no machine is read. Costs no more for 5e11 parameters than for
one, as long as the access pattern does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engram_core.planner.access import AccessPattern
from engram_core.planner.hosts import HostBudget
from engram_core.planner.placement import KINDS, Placement, place
from engram_core.planner.resources import Resource, resources
from engram_core.planner.shape import MemoryShape
from engram_core.planner.validation import require, require_number, require_whole
from engram_core.store.hot_size import cache_bytes

# arXiv 2601.07372: the best share of sparse parameters that goes to the memory
BEST_SHARE = (0.20, 0.25)
MAX_TOKENS_PER_S = 1e12
MAX_PARAMETERS = 10**16
CAPACITY = "capacity"


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of the hosts.

    Attributes:
        tokens_per_s: of all hosts together.
        backbone_parameters: of the model beside the memory, when known.
        active_parameters: those of them that every token uses; the others are sparse.
    """

    tokens_per_s: float
    backbone_parameters: int | None = None
    active_parameters: int = 0

    def __post_init__(self) -> None:
        require_number("tokens_per_s", self.tokens_per_s, 0.001, MAX_TOKENS_PER_S)
        whole, active = self.backbone_parameters, self.active_parameters
        if whole is not None:
            require_whole("backbone_parameters", whole, 1, MAX_PARAMETERS)
        elif active:
            accepted = "a whole number where active_parameters is given"
            require(False, "backbone_parameters", whole, accepted)
        require_whole("active_parameters", active, 0, whole or 0)


@dataclass(frozen=True, slots=True)
class TierPlan:
    """One tier as a token on one host meets it.

    Attributes:
        name: device, dram, extra, ssd, remote (the other hosts), or nowhere.
        rows: rows that it holds, on the host with the largest shard.
        bytes: what they occupy there: records in pages, or slots and the map of a cache.
        share: share of all reads that it answers.
        rows_per_s: reads that it answers, of all hosts together.
    """

    name: str
    rows: int
    bytes: int
    share: float
    rows_per_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. Bytes are of records unless they are called stored (packed into pages).

    Attributes:
        layer_bytes: per layer. layer_stored_bytes: the same in whole pages.
        host_stored_bytes: of the largest shard. shard_heads: heads per order in it.
        memory_share: of all sparse parameters; None when the backbone is not known.
        is_cached: whether host memory and the extra node are a cache before an SSD.
        cache_map_bytes: what such a cache takes on a host before it keeps any row; else 0.
        access: where the shares come from.
        fits: whether every row has a place.
        bottleneck: name of the tightest resource, ``capacity`` when rows have no place, None when
            no given resource is used.
        attainable_tokens_per_s: what the tightest resource allows; None when nothing limits.
    """

    record_bytes: int
    records_per_page: int
    rows: tuple[int, ...]
    rows_per_token: int
    parameters: int
    memory_share: float | None
    layer_bytes: tuple[int, ...]
    layer_stored_bytes: tuple[int, ...]
    total_bytes: int
    total_stored_bytes: int
    shard_heads: int
    host_stored_bytes: int
    is_cached: bool
    cache_map_bytes: int
    access: Mapping[str, Any]
    tiers: tuple[TierPlan, ...]
    resources: tuple[Resource, ...]
    fits: bool
    target_tokens_per_s: float
    attainable_tokens_per_s: float | None
    bottleneck: str | None

    @property
    def target_met(self) -> bool:
        """Whether every row has a place and no given resource is overdrawn."""
        attainable = self.attainable_tokens_per_s
        return self.fits and (attainable is None or attainable >= self.target_tokens_per_s)

    @property
    def dram_bytes(self) -> int:
        """Bytes of rows in the host memory of the host with the largest shard."""
        return next(tier.bytes for tier in self.tiers if tier.name == "dram")

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data."""
        used = [{**asdict(each), "used": each.used} for each in self.resources]
        return asdict(self) | {
            "resources": used,
            "target_met": self.target_met,
            "best_memory_share": BEST_SHARE,
        }


def plan(shape: MemoryShape, hosts: HostBudget, target: Target, access: AccessPattern) -> Plan:
    """Place the rows of `shape` on `hosts` and say whether `target` can be met.

    Raises:
        ConfigError: more hosts than heads, so that a host would hold no row.
    """
    accepted = f"up to num_heads ({shape.num_heads}): rows are sharded by head"
    require(hosts.num_hosts <= shape.num_heads, "num_hosts", hosts.num_hosts, accepted)
    placement = place(shape, hosts, access)
    needs = resources(shape, hosts, placement, target.tokens_per_s)
    bottleneck, attainable = _tightest(needs, placement, target.tokens_per_s)
    stored = tuple(shape.record.stored_bytes(rows) for rows in shape.rows)
    return Plan(
        record_bytes=shape.record.bytes,
        records_per_page=shape.record.per_page,
        rows=shape.rows,
        rows_per_token=shape.rows_per_token,
        parameters=shape.parameters,
        memory_share=_memory_share(shape, target),
        layer_bytes=tuple(rows * shape.record.bytes for rows in shape.rows),
        layer_stored_bytes=stored,
        total_bytes=shape.total_bytes,
        total_stored_bytes=sum(stored),
        shard_heads=placement.shard_heads,
        host_stored_bytes=shape.stored_bytes(placement.shard_heads),
        is_cached=placement.is_cached,
        cache_map_bytes=_map_bytes(shape, placement),
        access=access.to_dict(),
        tiers=_tiers(shape, hosts, placement, target.tokens_per_s),
        resources=needs,
        fits=placement.fits,
        target_tokens_per_s=target.tokens_per_s,
        attainable_tokens_per_s=attainable,
        bottleneck=bottleneck,
    )


def _memory_share(shape: MemoryShape, target: Target) -> float | None:
    if target.backbone_parameters is None:
        return None
    others = target.backbone_parameters - target.active_parameters
    return shape.parameters / (shape.parameters + others)


def _map_bytes(shape: MemoryShape, placement: Placement) -> int:
    if not placement.is_cached:
        return 0
    rows = sum(shape.shard_rows(placement.shard_heads))
    return cache_bytes(rows, shape.record.row_dim, 0)


def _tightest(
    needs: tuple[Resource, ...], placement: Placement, tokens_per_s: float
) -> tuple[str | None, float | None]:
    """Needs grow with tokens, so the fullest border decides and says how far it reaches."""
    if not placement.fits:
        return CAPACITY, 0.0
    fullest = max(needs, key=lambda each: each.used or 0.0)
    if not fullest.used:
        return None, None
    return fullest.name, tokens_per_s / fullest.used


def _tiers(
    shape: MemoryShape, hosts: HostBudget, placement: Placement, tokens_per_s: float
) -> tuple[TierPlan, ...]:
    own = 1.0 / hosts.num_hosts
    shares = {kind: placement.shares[kind] * own for kind in KINDS}
    shares["device"] = placement.shares["device"]
    rows, sizes = dict(placement.rows), dict(placement.bytes)
    if hosts.num_hosts > 1:
        shares["remote"] = (1.0 - shares["device"]) * (1.0 - own)
        rows["remote"] = shape.total_rows - sum(shape.shard_rows(placement.shard_heads))
        sizes["remote"] = shape.record.stored_bytes(rows["remote"])
    rate = shape.rows_per_token * tokens_per_s
    return tuple(
        TierPlan(name, rows[name], sizes[name], share, rate * share)
        for name, share in shares.items()
    )
