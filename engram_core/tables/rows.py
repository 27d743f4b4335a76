"""The rows of one layer's table as tensors, before they become a tier or after they left a file.

Knows shapes; knows no files and no tiers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engram_core.errors import ConfigError

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DenseRows:
    """Every row of a table: ``[num_rows, row_dim]`` in float32, bf16 or fp16."""

    values: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return int(self.values.shape[0])

    @property
    def row_dim(self) -> int:
        """Values in a row."""
        return int(self.values.shape[1])


@dataclass(frozen=True, slots=True)
class SparseRows:
    """The written rows of a table; all others are zero.

    Attributes:
        row_ids: int64 ``[k]``, ascending, each once.
        values: ``[k, row_dim]`` in float32, bf16 or fp16.
        num_rows: rows of the whole table.
    """

    row_ids: Int64Array
    values: torch.Tensor
    num_rows: int

    def __post_init__(self) -> None:
        ids = self.row_ids
        if len(ids) != len(self.values):
            raise ConfigError(f"{len(ids)} row ids for {len(self.values)} rows; accepted: equal")
        if len(ids) and (ids[0] < 0 or ids[-1] >= self.num_rows or bool((np.diff(ids) <= 0).any())):
            raise ConfigError(f"row ids; accepted: ascending, each once, 0 to {self.num_rows - 1}")

    @property
    def row_dim(self) -> int:
        """Values in a row."""
        return int(self.values.shape[1])


TableRows = DenseRows | SparseRows
