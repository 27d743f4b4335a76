"""How an arm gets a request's rows: in the layer, through a hot cache, or ahead of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from benchmarks.documents import TokenIds
from engram_core.store.base import Tier

# Row ids [n] of a layer to rows [n, row_dim] in host memory.
Gather = Callable[[int, TokenIds], torch.Tensor]
# Token ids [tokens] and a layer to row ids int64 [tokens, columns].
HashLayer = Callable[[TokenIds, int], TokenIds]


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


def tier_gather(tiers: Mapping[int, Tier], dtype: torch.dtype) -> Gather:
    """Rows of tiers, in `dtype`."""

    def gather(layer: int, row_ids: TokenIds) -> torch.Tensor:
        out = torch.empty(row_ids.size, tiers[layer].row_dim, dtype=dtype)
        tiers[layer].gather(np.ascontiguousarray(row_ids), out)
        return out

    return gather
