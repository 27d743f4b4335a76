"""InLayer: a layer looks its rows up when it needs them."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.documents import TokenIds
from benchmarks.three_arm.lookups import Gather, HashLayer, LookupCost, Pending
from engram_core.device import Device


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
