"""Rows for tables of any size, made piece by piece: meaningless, and every one different."""

from __future__ import annotations

import torch

_ROW_SCALE = 0.05  # small, so that a model with such a memory stays sane
_BLOCK_ROWS = 1 << 18
_MANTISSA = 0x7F  # bits of a bfloat16 whose change leaves sign and magnitude alone


class SyntheticRows:
    """A table read piece by piece: one random block, over and over, each time a little different.

    In pass p over the block the lowest 7 bits of p flip mantissa bits of column 0, the next 7 those
    of column 1: finite values stay finite, and no two rows are equal before 2**14 passes.

    Args:
        num_rows: of the table. row_dim: values in a row, two at least. seed: of the block.
    """

    def __init__(self, num_rows: int, row_dim: int, seed: int) -> None:
        self.num_rows, self.row_dim = num_rows, row_dim
        generator = torch.Generator().manual_seed(seed)
        shape = (min(num_rows, _BLOCK_ROWS), row_dim)
        block = torch.randn(shape, generator=generator) * _ROW_SCALE
        self._block = block.bfloat16().view(torch.int16)

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The rows `start` to `stop` (exclusive): bfloat16 ``[stop - start, row_dim]``."""
        row_ids = torch.arange(start, stop)
        passes = row_ids // _BLOCK_ROWS
        rows = self._block[row_ids % _BLOCK_ROWS]
        rows[:, 0] ^= (passes & _MANTISSA).to(torch.int16)
        rows[:, 1] ^= (passes >> 7 & _MANTISSA).to(torch.int16)
        return rows.view(torch.bfloat16)
