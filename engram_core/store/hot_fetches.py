"""HotFetches: which rows are on their way into a hot cache, so that nobody fetches them twice.

A fetch owns a range of places behind the cache's slots, one per row. Knows no policy and no tier;
its owner calls it by one thread at a time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engram_core.errors import TierError

_MAX_PLACE = 2**31 - 1  # places are int32


@dataclass(eq=False, slots=True)
class HotFetch:
    """Missing rows of one gather on their way.

    Attributes:
        first_place: place of the first row. num_rows: places that belong to it.
        words: uint16 ``[num_rows, row_dim]`` once they have landed; None after a failure.
        done: set when they have landed or failed.
    """

    first_place: int
    num_rows: int
    words: npt.NDArray[np.uint16] | None = None
    done: threading.Event = field(default_factory=threading.Event)


class HotFetches:
    """The fetches under way, by place.

    Args:
        first_place: the first place that is not a slot.
    """

    def __init__(self, first_place: int) -> None:
        self._first_place = first_place
        self._under_way: list[HotFetch] = []  # ascending, disjoint

    def free_range(self, num_rows: int) -> int:
        """The first of so many consecutive places that no fetch uses.

        Raises:
            TierError: so many rows are on their way that places have run out.
        """
        first = self._first_place
        for fetch in self._under_way:
            if fetch.first_place - first >= num_rows:
                break
            first = fetch.first_place + fetch.num_rows
        if first + num_rows > _MAX_PLACE:
            raise TierError(f"{num_rows} more rows are asked for while 2^31 are on their way")
        return first

    def begin(self, first_place: int, num_rows: int) -> HotFetch:
        """Enter a fetch of rows at a free range of places."""
        fetch = HotFetch(first_place, num_rows)
        self._under_way.append(fetch)
        self._under_way.sort(key=lambda each: each.first_place)
        return fetch

    def end(self, fetch: HotFetch, words: npt.NDArray[np.uint16] | None) -> None:
        """Its rows have landed as `words`, or failed (None): whoever waits goes on."""
        self._under_way.remove(fetch)
        fetch.words = words
        fetch.done.set()

    def others(self, own: HotFetch | None) -> list[HotFetch]:
        """All fetches under way but one's own."""
        return [fetch for fetch in self._under_way if fetch is not own]
