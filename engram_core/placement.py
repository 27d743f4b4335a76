"""Placement: in which tier the packed tables of an artefact lie, whether cached, and why.

Decides from given sizes and a given measurement; knows no files, makes no tiers, measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engram_core.errors import ConfigError
from engram_core.host_memory import HostMemory
from engram_core.memory_config import MemoryConfig
from engram_core.row_cost import RowCost, in_us

EXPECTED_HIT_RATE = 0.4  # a little less than reference streams had at a tenth of the rows
_DRAM_SHARE = 0.6  # of the free memory; the backbone's caches and everybody else need the rest
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tables lie.

    Attributes:
        tier: ``"dram"``, ``"ssd"`` or ``"remote"``.
        why_tier: the reason, for people.
        hot_cache: whether a cache of hot rows stands in front of it.
        why_cache: the reason, for people; empty where there is no choice.
        cost: what was measured; None before, or where rows could not be read.
    """

    tier: str
    why_tier: str
    hot_cache: bool = False
    why_cache: str = ""
    cost: RowCost | None = None

    @property
    def why(self) -> str:
        """All reasons in a line, for people."""
        measured = f"; {self.cost}" if self.cost is not None else ""
        cache = f"; hot cache {self.why_cache}" if self.why_cache else ""
        return f"{self.tier}: {self.why_tier}{measured}{cache}"


def place_tables(table_bytes: int, config: MemoryConfig, memory: HostMemory) -> Placement:
    """Choose the tier of packed tables that take `table_bytes` together, and whether to cache.

    Args:
        table_bytes: of all layers.
        config: what the operator said.
        memory: what is free.

    Raises:
        ConfigError: what the operator said does not fit the free memory; a process that tried
            would be killed in the middle of loading.
    """
    sizes = (
        f"the tables take {table_bytes / _GIB:.2f} GiB and {memory.free_bytes / _GIB:.2f} GiB are "
        f"free ({memory.source})"
    )
    tier, why = config.tier, f"as told; {sizes}"
    if tier == "dram" and table_bytes > memory.free_bytes:
        raise ConfigError(f"tier is 'dram', but {sizes}; accepted: ssd, or auto, which takes it")
    if tier == "auto":
        fits = table_bytes <= memory.free_bytes * _DRAM_SHARE
        tier = "dram" if fits else "ssd"
        why = sizes if fits else f"{sizes}, of which tables get at most {_DRAM_SHARE:.0%}"
    placement = _with_cache(Placement(tier, why), config, None)
    _check_hot_cache(placement, config, table_bytes if tier == "dram" else 0, memory)
    return placement


def place_remotely(config: MemoryConfig, memory: HostMemory) -> Placement:
    """Tables that row servers have. Raises ConfigError for a hot cache that does not fit."""
    why = f"as told; rows from {', '.join(config.row_servers)}"
    placement = _with_cache(Placement("remote", why), config, None)
    _check_hot_cache(placement, config, 0, memory)
    return placement


def with_cost(placement: Placement, config: MemoryConfig, cost: RowCost | None) -> Placement:
    """The placement, with or without a hot cache as the measured cost of its rows says.

    Args:
        placement: where the rows are read.
        config: what the operator said.
        cost: of those rows; None: by the tier alone.
    """
    if not placement.why_cache:  # rows that no cache may stand in front of
        return replace(placement, cost=cost)
    return _with_cache(placement, config, cost)


def _with_cache(placement: Placement, config: MemoryConfig, cost: RowCost | None) -> Placement:
    is_hot, why = _choose_hot_cache(config, placement.tier, cost)
    return replace(placement, hot_cache=is_hot, why_cache=why, cost=cost)


def _choose_hot_cache(config: MemoryConfig, tier: str, cost: RowCost | None) -> tuple[bool, str]:
    if config.hot_cache != "auto":
        return config.hot_cache == "on", f"{config.hot_cache}: as told"
    if tier == "dram":
        hit = "" if cost is None else f", a hit would take {in_us(cost.hit_s)}"
        return False, f"off: the rows are in memory already{hit}"
    size = config.hot_cache_bytes
    kept = "a tenth of the rows" if size is None else f"{size} bytes"
    if cost is None:
        return True, f"on: {kept}"
    figures = f"a hit takes {in_us(cost.hit_s)}, a miss {in_us(cost.miss_extra_s)} more than a row"
    if cost.cached_s(EXPECTED_HIT_RATE) < cost.first_s:
        return True, f"on: {kept}; {figures}"
    return False, f"off: {figures}, which does not pay at a hit rate of {EXPECTED_HIT_RATE:.0%}"


def _check_hot_cache(
    placement: Placement, config: MemoryConfig, taken_bytes: int, memory: HostMemory
) -> None:
    """Refuse a cache that does not fit beside the `taken_bytes` of tables in host memory."""
    size, left = config.hot_cache_bytes, max(0, memory.free_bytes - taken_bytes)
    if placement.hot_cache and size is not None and size > left:
        tables = f", of which the tables take {taken_bytes / _GIB:.2f} GiB" if taken_bytes else ""
        free = f"{memory.free_bytes / _GIB:.2f} GiB are free ({memory.source}){tables}"
        raise ConfigError(
            f"hot_cache_bytes is {size} ({size / _GIB:.2f} GiB), but {free}; "
            f"accepted: up to {left} bytes, or hot_cache off"
        )
