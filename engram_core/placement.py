"""Placement: in which tier the packed tables of an artefact lie, and why.

A decision from sizes alone; knows no files and makes no tiers.
"""

from __future__ import annotations

from dataclasses import dataclass

from engram_core.errors import ConfigError
from engram_core.host_memory import HostMemory
from engram_core.memory_config import MemoryConfig

_DRAM_SHARE = 0.6  # of the free memory; the backbone's caches and everybody else need the rest
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tables lie.

    Attributes:
        tier: ``"dram"``, ``"ssd"`` or ``"remote"``.
        why: the reason, for people.
        hot_cache: whether a cache of hot rows stands in front of it.
    """

    tier: str
    why: str
    hot_cache: bool = False


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
    hot, why_hot = _choose_hot_cache(config, tier)
    if hot:
        _check_hot_cache(config, table_bytes if tier == "dram" else 0, memory)
    return Placement(tier, f"{tier}: {why}; hot cache {why_hot}", hot)


def place_remotely(config: MemoryConfig, memory: HostMemory) -> Placement:
    """Tables that row servers have. Raises ConfigError for a hot cache that does not fit."""
    hot, why_hot = _choose_hot_cache(config, "remote")
    if hot:
        _check_hot_cache(config, 0, memory)
    servers = ", ".join(config.row_servers)
    return Placement("remote", f"remote: as told; rows from {servers}; hot cache {why_hot}", hot)


def _choose_hot_cache(config: MemoryConfig, tier: str) -> tuple[bool, str]:
    if config.hot_cache != "auto":
        return config.hot_cache == "on", f"{config.hot_cache}: as told"
    if tier in ("ssd", "remote"):
        size = config.hot_cache_bytes
        return True, f"on: {'a tenth of the rows' if size is None else f'{size} bytes'}"
    return False, "off: a hit would cost as much as a row in dram"


def _check_hot_cache(config: MemoryConfig, taken_bytes: int, memory: HostMemory) -> None:
    """Refuse a cache that does not fit beside the `taken_bytes` of tables in host memory."""
    size, left = config.hot_cache_bytes, max(0, memory.free_bytes - taken_bytes)
    if size is not None and size > left:
        tables = f", of which the tables take {taken_bytes / _GIB:.2f} GiB" if taken_bytes else ""
        free = f"{memory.free_bytes / _GIB:.2f} GiB are free ({memory.source}){tables}"
        raise ConfigError(
            f"hot_cache_bytes is {size} ({size / _GIB:.2f} GiB), but {free}; "
            f"accepted: up to {left} bytes, or hot_cache off"
        )
