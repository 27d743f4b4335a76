"""RowRanges: some contiguous ranges of a table's rows, and the place of a row among them.

A column of a layer (an order and a head) owns one range, so the heads of a row server are a few
ranges. Knows no rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from engram_core.errors import ConfigError, IdRangeError
from engram_core.layout import HashLayout
from engram_core.store.base import RowIds

Bounds = tuple[tuple[int, int], ...]


class RowRanges:
    """Ranges of row ids, packed one behind the other.

    Args:
        bounds: (first, one behind the last) of each, ascending, none empty, none overlapping.

    Attributes:
        bounds: the same with neighbours joined. num_rows: rows in all of them.

    Raises:
        ConfigError: the bounds are not in that form.
    """

    def __init__(self, bounds: Sequence[tuple[int, int]]) -> None:
        flat = [edge for pair in bounds for edge in pair]
        is_ascending = all(a <= b for a, b in pairwise(flat))
        if not flat or flat[0] < 0 or not is_ascending or any(a == b for a, b in bounds):
            raise ConfigError(f"row ranges are {bounds}; accepted: ascending, none empty")
        self.bounds = _join(bounds)
        edges = np.array(self.bounds, dtype=np.int64)
        self._starts, self._stops = edges[:, 0].copy(), edges[:, 1].copy()
        lengths = self._stops - self._starts
        self._shifts = self._starts - np.concatenate([[0], np.cumsum(lengths)[:-1]])
        self.num_rows = int(lengths.sum())

    def holds(self, row_ids: RowIds) -> npt.NDArray[np.bool_]:
        """Which of the ids ``[n]`` lie in a range."""
        return self._is_inside(row_ids, self._index(row_ids))

    def places(self, row_ids: RowIds) -> RowIds:
        """Where the rows ``[n]`` lie when the ranges are packed: 0 <= place < `num_rows`.

        Raises:
            IdRangeError: names the first row that lies in no range.
        """
        index = self._index(row_ids)
        is_inside = self._is_inside(row_ids, index)
        if not is_inside.all():
            shown = ", ".join(f"{first} to {stop - 1}" for first, stop in self.bounds)
            bad = int(row_ids[~is_inside][0])
            raise IdRangeError(f"row id {bad} is not among the rows here; accepted: {shown}")
        places: RowIds = row_ids - self._shifts[index]
        return places

    def _index(self, row_ids: RowIds) -> npt.NDArray[np.intp]:
        """The last range that starts at or before each id; the first for ids before all."""
        return np.maximum(np.searchsorted(self._starts, row_ids, side="right") - 1, 0)

    def _is_inside(self, row_ids: RowIds, index: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        inside: npt.NDArray[np.bool_] = self._starts[index] <= row_ids
        return inside & (row_ids < self._stops[index])


def head_bounds(layout: HashLayout, layer: int, heads: Collection[int] | None) -> Bounds:
    """The rows that `heads` own in a layer, in every order; None stands for all heads.

    Raises:
        ConfigError: there is no such head.
    """
    num_heads = layout.config.num_heads
    wanted = set(range(num_heads)) if heads is None else set(heads)
    if not wanted or not wanted <= set(range(num_heads)):
        raise ConfigError(f"heads is {sorted(wanted)}; accepted: numbers from 0 to {num_heads - 1}")
    starts, sizes = layout.offsets[layer], layout.column_primes(layer)
    columns = [c for c in range(len(starts)) if c % num_heads in wanted]  # order-major, then head
    return _join([(starts[c], starts[c] + sizes[c]) for c in columns])


def _join(bounds: Sequence[tuple[int, int]]) -> Bounds:
    """The same rows in as few ranges as possible."""
    joined: list[tuple[int, int]] = []
    for first, stop in bounds:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((first, stop))
    return tuple(joined)
