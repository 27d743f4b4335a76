"""MemoryTotals: what all memories of a server counted together, those that were freed included.

A swapped memory goes on counting until its last sequence ends, and what it counted stays in the
sums afterwards. Plain numbers; knows no metrics library.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from engram_core.stats import HotCacheStats, MemoryStats, RowServerStats


class MemorySource(Protocol):
    """A memory as far as its statistics go; `engram_core.version.MemoryVersion` is one."""

    @property
    def is_freed(self) -> bool:
        """Whether nobody reads it any more."""

    def stats(self) -> MemoryStats:
        """What its tiers counted so far."""


class MemoryTotals:
    """Sums over memories. Thread-safe; freed memories are let go of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: list[MemorySource] = []
        self._retired = MemoryStats()

    def add(self, source: MemorySource) -> None:
        """Count a memory in from now on."""
        with self._lock:
            self._sources.append(source)

    def retire(self) -> None:
        """Keep the sums of memories that were freed, and let go of the rest of them."""
        with self._lock:
            freed = [source for source in self._sources if source.is_freed]
            self._sources = [source for source in self._sources if source not in freed]
            self._retired = _sum([self._retired, *(_counters(each.stats()) for each in freed)])

    def stats(self) -> MemoryStats:
        """Counters of all memories so far, and the sizes of those that are held."""
        with self._lock:
            return _sum([self._retired, *(source.stats() for source in self._sources)])


def _counters(stats: MemoryStats) -> MemoryStats:
    """What stays of a memory that is gone."""
    return MemoryStats(
        {
            key: replace(each, resident_rows=0, capacity_rows=0, nbytes=0)
            for key, each in stats.hot_caches.items()
        },
        {name: replace(each, is_open=False) for name, each in stats.row_servers.items()},
    )


def _sum(parts: Iterable[MemoryStats]) -> MemoryStats:
    caches: dict[tuple[int, str], HotCacheStats] = {}
    servers: dict[str, RowServerStats] = {}
    for part in parts:
        for key, cache in part.hot_caches.items():
            caches[key] = caches.get(key, HotCacheStats()) + cache
        for name, server in part.row_servers.items():
            servers[name] = servers.get(name, RowServerStats(name)) + server
    return MemoryStats(caches, servers)
