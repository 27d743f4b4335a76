"""Ahead: the server's own prefetcher looks rows up from a request's arrival on, beside compute."""

from __future__ import annotations

import torch

from benchmarks.documents import TokenIds
from benchmarks.three_arm.lookups import LookupCost, Pending
from engram_core.prefetch import Prefetcher
from engram_core.stats import LookupStats
from engram_core.version import MemoryVersion

CACHE_TIERS = frozenset({"hot", "device"})


class Ahead:
    """The server's own prefetcher: looked up from a request's arrival on, beside compute.

    Args:
        version: the memory. prefetcher: of the device that computes.
    """

    def __init__(self, version: MemoryVersion, prefetcher: Prefetcher) -> None:
        self._version, self._prefetcher = version, prefetcher

    def begin(self, token_ids: TokenIds) -> Pending:
        """The worker starts with the rows of the first layer."""
        return _AheadRows(self._version, self._prefetcher, token_ids)

    def close(self) -> None:
        """Stop the worker."""
        self._prefetcher.close()


class _AheadRows:
    def __init__(self, version: MemoryVersion, prefetcher: Prefetcher, token_ids: TokenIds) -> None:
        self._ticket = prefetcher.submit_prompt(version, token_ids.tolist())
        self._exposed_s = 0.0

    def rows(self, layer: int) -> torch.Tensor:
        rows, wait_s = self._ticket.rows(layer)
        self._exposed_s += wait_s
        return rows

    def end(self) -> LookupCost:
        self._ticket.release()
        stats = self._ticket.drain_stats()
        return LookupCost(
            lookup_s=sum(_work_s(each) for each in stats),
            exposed_s=self._exposed_s,
            rows=sum(each.rows for each in stats),
            hits=sum(each.rows_by_tier.get(name, 0) for each in stats for name in CACHE_TIERS),
        )


def _work_s(stats: LookupStats) -> float:
    """A lookup's own work, without its place in the worker's queue."""
    return stats.hash_s + sum(stats.duration_by_tier_s.values())
