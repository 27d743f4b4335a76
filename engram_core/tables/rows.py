"""The rows of one layer's table as tensors, before they become a tier or after they left a file.

Knows shapes; knows no files and no tiers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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


class RowReader(Protocol):
    """A table read piece by piece, of any size."""

    @property
    def num_rows(self) -> int:
        """Rows of the table."""

    @property
    def row_dim(self) -> int:
        """Values in a row."""

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The rows `start` to `stop` (exclusive): ``[stop - start, row_dim]``."""


@dataclass(frozen=True, slots=True)
class RowsReader:
    """A `RowReader` of rows that are in memory."""

    rows: TableRows

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.rows.num_rows

    @property
    def row_dim(self) -> int:
        """Values in a row."""
        return self.rows.row_dim

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The rows `start` to `stop` (exclusive), rows never written as zeros."""
        rows = self.rows
        if isinstance(rows, DenseRows):
            return rows.values[start:stop]
        first, last = np.searchsorted(rows.row_ids, [start, stop])
        out = torch.zeros(stop - start, rows.row_dim, dtype=rows.values.dtype)
        out[torch.from_numpy(rows.row_ids[first:last] - start)] = rows.values[first:last]
        return out
