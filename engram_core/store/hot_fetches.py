"""HotFetches: which rows are on their way into a hot cache, so that nobody fetches them twice.

A fetch owns a range of places behind the cache's slots, one per row. Knows no policy and no tier;
its owner calls it by one thread at a time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engram_core.errors import TierError

Landed = TypeVar("Landed")  # rows where a cache keeps them: host memory or a device
_MAX_PLACE = 2**31 - 1  # places are int32


@dataclass(eq=False, slots=True)
class HotFetch(Generic[Landed]):
    """Missing rows of one gather on their way.

    Attributes:
        first_place: place of the first row. num_rows: places that belong to it.
        rows: all of them once they have landed; None after a failure.
        done: set when they have landed or failed.
    """

    first_place: int
    num_rows: int
    rows: Landed | None = None
    done: threading.Event = field(default_factory=threading.Event)


class HotFetches(Generic[Landed]):
    """The fetches under way, by place.

    Args:
        first_place: the first place that is not a slot.
    """

    def __init__(self, first_place: int) -> None:
        self._first_place = first_place
        self._under_way: list[HotFetch[Landed]] = []  # ascending, disjoint

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

    def begin(self, first_place: int, num_rows: int) -> HotFetch[Landed]:
        """Enter a fetch of rows at a free range of places."""
        fetch: HotFetch[Landed] = HotFetch(first_place, num_rows)
        self._under_way.append(fetch)
        self._under_way.sort(key=lambda each: each.first_place)
        return fetch

    def end(self, fetch: HotFetch[Landed], rows: Landed | None) -> None:
        """Its rows have landed as `rows`, or failed (None): whoever waits goes on."""
        self._under_way.remove(fetch)
        fetch.rows = rows
        fetch.done.set()

    def others(self, own: HotFetch[Landed] | None) -> list[HotFetch[Landed]]:
        """All fetches under way but one's own."""
        return [fetch for fetch in self._under_way if fetch is not own]
