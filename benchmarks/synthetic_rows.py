"""Rows for tables of any size, made piece by piece: what a lookup costs does not depend on values.

Neighbouring rows differ, and the same id always gives the same row.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

_BLOCK_ROWS = 1 << 16
_STRIDE = 977  # shifts every piece of the table by another number of rows
_SCALE = 0.02  # small, so that a model with such a memory stays sane


class SyntheticRows:
    """A table of pseudo-random rows; reads like the table of an artefact.

    Attributes:
        num_rows: of the table. row_dim: values in a row.
    """

    def __init__(self, num_rows: int, row_dim: int, seed: int) -> None:
        self.num_rows, self.row_dim = num_rows, row_dim
        self._seed = seed

    @cached_property
    def _block(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed)
        values = torch.randn(_BLOCK_ROWS, self.row_dim, generator=generator) * _SCALE
        return values.to(torch.bfloat16)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The rows `start` to `stop` (exclusive), bf16 ``[stop - start, row_dim]``."""
        ids = np.arange(start, stop, dtype=np.int64)
        places = (ids + ids // _BLOCK_ROWS * _STRIDE) % _BLOCK_ROWS
        return self._block[torch.from_numpy(places)]
