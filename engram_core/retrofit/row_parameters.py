"""RowParameters: the trainable rows of one layer's table, and the Adam that moves them.

Only rows that some example reads exist here; the rest of the table stays zero and costs nothing.
An update touches the batch's rows alone, each with its own step count. Knows no model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

BETAS = (0.9, 0.99)
EPS = 1e-8

Int64Array = npt.NDArray[np.int64]


class RowParameters:
    """Trainable rows, zero at the start.

    Args:
        used: row ids that may ever be read, int64, in any order, repeats allowed.
        row_dim: values in a row.

    Attributes:
        row_ids: int64 ``[k]`` ascending, the table rows that exist here.
        values: float32 ``[k, row_dim]``.
    """

    def __init__(self, used: Int64Array, row_dim: int) -> None:
        self.row_ids: Int64Array = np.unique(used)
        self.values = torch.zeros(len(self.row_ids), row_dim)
        self._mean = torch.zeros_like(self.values)
        self._square = torch.zeros_like(self.values)
        self._steps = torch.zeros(len(self.row_ids), 1)

    @property
    def is_written(self) -> torch.Tensor:
        """Rows that ever got an update: bool ``[k]``."""
        return self._steps[:, 0] > 0

    def slots(self, row_ids: Int64Array) -> torch.Tensor:
        """Places in `values` of table rows (all of them among `row_ids`), same shape."""
        return torch.from_numpy(np.searchsorted(self.row_ids, row_ids))

    def update(self, slots: torch.Tensor, gradient: torch.Tensor, learning_rate: float) -> None:
        """One Adam step (Kingma and Ba, 2015) for the distinct rows `slots` ``[u]``."""
        steps = self._steps[slots] + 1
        mean = torch.lerp(gradient, self._mean[slots], BETAS[0])
        square = torch.lerp(gradient.square(), self._square[slots], BETAS[1])
        self._steps[slots], self._mean[slots], self._square[slots] = steps, mean, square
        unbiased_mean = mean / (1 - BETAS[0] ** steps)
        unbiased_square = square / (1 - BETAS[1] ** steps)
        self.values[slots] -= learning_rate * unbiased_mean / (unbiased_square.sqrt() + EPS)
