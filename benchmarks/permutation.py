"""The control of the memory measurement: the same rows at the wrong addresses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def shuffle_within_heads(row_ids: Int64Array, first_rows: Sequence[int], seed: int) -> Int64Array:
    """Which written row each written place gets: an order of `row_ids`, shuffled head by head.

    Only written places trade their rows. A position therefore finds a written row exactly where
    it found one before, the gate opens as often, and only what the rows say is wrong.

    Args:
        row_ids: the written rows of a layer's table, ascending.
        first_rows: where each head's rows begin, ascending, starting at 0.
        seed: of the shuffle.

    Returns:
        Indices into `row_ids`, so that ``values[order]`` are the shuffled rows.
    """
    generator = np.random.default_rng(seed)
    ends = np.searchsorted(row_ids, [*first_rows[1:], np.iinfo(np.int64).max])
    starts = [0, *ends[:-1]]
    heads = [np.arange(a, b) for a, b in zip(starts, ends, strict=True)]
    return np.concatenate([generator.permutation(head) for head in heads]).astype(np.int64)
