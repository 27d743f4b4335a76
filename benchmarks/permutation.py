"""The control of the memory measurement: the same rows at the wrong addresses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def permute_written_rows(rows: Tensor, first_rows: Sequence[int], seed: int) -> Tensor:
    """A copy of one layer's table with the written rows of each head shuffled among themselves.

    Rows that are zero stay where they are. So a position finds a written row exactly where it
    found one before, the gate opens as often, and only what the rows say is wrong.

    Args:
        rows: the table, ``[rows, width]``.
        first_rows: where each head's rows begin, ascending, starting at 0.
        seed: of the shuffle.
    """
    generator = torch.Generator().manual_seed(seed)
    result = rows.clone()
    ends = [*first_rows[1:], len(rows)]
    for start, end in zip(first_rows, ends, strict=True):
        written = start + torch.nonzero(rows[start:end].any(dim=1)).flatten()  # [written rows]
        shuffled = written[torch.randperm(len(written), generator=generator)]
        result[written] = rows[shuffled]
    return result
