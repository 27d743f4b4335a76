"""Admission: how many generation requests may be inside at once.

A place is taken before the body is read or tokenised, so an overload costs almost nothing. Not
thread-safe: for the event loop only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from server.wire.errors import overloaded


class Admission:
    """A counter with a limit."""

    def __init__(self, limit: int) -> None:
        self.limit, self.in_use = limit, 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one place.

        Raises:
            ApiError: 429 when all are taken.
        """
        if self.in_use >= self.limit:
            raise overloaded(f"all {self.limit} places are taken; try again later")
        self.in_use += 1
        try:
            yield
        finally:
            self.in_use -= 1
