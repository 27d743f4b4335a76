"""The hit rule on the host: which tokens of a lookup can contribute at all.

`EngramConfig.min_hit_orders` silences a token unless every row of these orders has a value. The
lookup knows that from ids or rows in host memory, before compute and without asking a device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engram_core.served_orders import ServedOrders
from engram_core.store.base import RowIds, Tier
from engram_core.store.device_cache import DeviceCache
from engram_core.store.kernels import non_zero_rows
from engram_core.store.sparse import SparseTier


class Hits(NamedTuple):
    """Tokens that the rule lets contribute."""

    mask: npt.NDArray[np.bool_]  # [tokens]
    number: int


class HitRule:
    """The rule of one memory.

    Args:
        served: orders of a memory with `min_hit_orders`; they have every needed one.
    """

    def __init__(self, served: ServedOrders) -> None:
        needed = [order in served.config.min_hit_orders for order in served.orders]
        self._needed = np.repeat(np.array(needed, dtype=np.bool_), served.config.num_heads)

    def of_ids(self, tier: Tier, row_ids: RowIds) -> Hits | None:
        """The hits of ids ``[tokens, columns]``; None where a tier must gather to know."""
        if isinstance(tier, DeviceCache):
            tier = tier.inner
        return Hits(*tier.hits(row_ids, self._needed)) if isinstance(tier, SparseTier) else None

    def of_rows(self, rows: torch.Tensor) -> Hits:
        """The hits of gathered rows ``[tokens * columns, row_dim]`` in host memory."""
        written = non_zero_rows(rows).reshape(-1, len(self._needed))  # [tokens, columns]
        mask = np.logical_and.reduce(written[:, self._needed], axis=1)
        return Hits(mask, int(np.count_nonzero(mask)))
