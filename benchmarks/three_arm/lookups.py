"""How an arm gets a request's rows: in the layer, through a hot cache, or ahead of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from benchmarks.documents import TokenIds
from engram_core.device import Device
from engram_core.prefetch import Prefetcher
from engram_core.stats import LookupStats
from engram_core.store.base import Tier
from engram_core.version import MemoryVersion

# Row ids [n] of a layer to rows [n, row_dim] in host memory.
Gather = Callable[[int, TokenIds], torch.Tensor]
# Token ids [tokens] and a layer to row ids int64 [tokens, columns].
HashLayer = Callable[[TokenIds, int], TokenIds]
CACHE_TIERS = frozenset({"hot", "device"})


@dataclass(slots=True)
class LookupCost:
    """What the rows of one request cost.

    Attributes:
        lookup_s: hashing and gathering, wherever it ran. exposed_s: what compute waited for.
        rows: asked for. hits: of them out of a hot cache.
    """

    lookup_s: float = 0.0
    exposed_s: float = 0.0
    rows: int = 0
    hits: int = 0


class Pending(Protocol):
    """The rows of one request."""

    def rows(self, layer: int) -> torch.Tensor:
        """``[tokens, F]`` on the device."""

    def end(self) -> LookupCost:
        """Give the rows back."""


class Lookups(Protocol):
    """One way to look rows up."""

    def begin(self, token_ids: TokenIds) -> Pending:
        """A request has arrived, ids ``[tokens]``; returns at once."""

    def close(self) -> None:
        """Stop what runs beside compute."""


class InLayer:
    """Hash and gather when the layer asks, while compute stands still.

    Args:
        hash_layer: gives the row ids. gather: rows in host memory, in the dtype of compute.
        device: where compute reads them. count_hits: how many rows of all gathers so far came out
            of a hot cache.
    """

    def __init__(
        self,
        hash_layer: HashLayer,
        gather: Gather,
        device: Device,
        count_hits: Callable[[], int] = lambda: 0,
    ) -> None:
        self.hash_layer, self.gather, self.device = hash_layer, gather, device
        self.count_hits = count_hits

    def begin(self, token_ids: TokenIds) -> Pending:
        """Nothing happens yet."""
        return _InLayerRows(self, token_ids)

    def close(self) -> None:
        """Nothing runs."""


class _InLayerRows:
    def __init__(self, lookups: InLayer, token_ids: TokenIds) -> None:
        self._lookups, self._token_ids = lookups, token_ids
        self._cost = LookupCost()

    def rows(self, layer: int) -> torch.Tensor:
        lookups = self._lookups
        started_s = time.perf_counter()
        row_ids = lookups.hash_layer(self._token_ids, layer)
        hits = lookups.count_hits()
        rows = lookups.gather(layer, row_ids.reshape(-1))
        rows = rows.to(lookups.device.torch_device).view(len(row_ids), -1)
        lookups.device.synchronize()
        took_s = time.perf_counter() - started_s
        self._cost.lookup_s += took_s
        self._cost.exposed_s += took_s
        self._cost.rows += row_ids.size
        self._cost.hits += lookups.count_hits() - hits
        return rows

    def end(self) -> LookupCost:
        return self._cost


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


def tier_gather(tiers: Mapping[int, Tier], dtype: torch.dtype) -> Gather:
    """Rows of tiers, in `dtype`."""

    def gather(layer: int, row_ids: TokenIds) -> torch.Tensor:
        out = torch.empty(row_ids.size, tiers[layer].row_dim, dtype=dtype)
        tiers[layer].gather(np.ascontiguousarray(row_ids), out)
        return out

    return gather
