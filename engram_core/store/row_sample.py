"""RowSample: some rows of a tier as a tier of their own, for measurements.

Small, so that books about its rows are made at once. Knows no table and no orders.
"""

from __future__ import annotations

import torch

from engram_core.store.base import RowIds, Tier, TierReport


class RowSample:
    """Rows of another tier, numbered from 0.

    Args:
        tier: where they come from.
        row_ids: int64 ``[n]``, which they are; repeats allowed.
    """

    def __init__(self, tier: Tier, row_ids: RowIds) -> None:
        self.name, self.row_dim, self.nbytes = tier.name, tier.row_dim, tier.nbytes
        self.is_blocking, self.num_rows = tier.is_blocking, row_ids.size
        self._tier, self._row_ids = tier, row_ids

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Read the sampled rows (see `Tier.gather`)."""
        return self._tier.gather(self._row_ids[row_ids], out)
