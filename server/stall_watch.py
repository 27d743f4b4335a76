"""Notices a reader that stands still, with one timer for a whole stream.

A timeout around every write would cost more than the write itself.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class StallWatch:
    """`async with StallWatch(limit_s) as watch`: around writes that `watch` is told about.

    Raises:
        TimeoutError: in the body, when a write is not over after `limit_s`.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)  # never by itself: `_look` sets it
        self._began_s: float | None = None

    def begin(self) -> None:
        """A write begins."""
        self._began_s = self._loop.time()

    def end(self) -> None:
        """The write is over."""
        self._began_s = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self._limit_s, self._look)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _look(self) -> None:
        """End a write that takes too long, or come back when the present one would."""
        now_s = self._loop.time()
        began_s = now_s if self._began_s is None else self._began_s
        if now_s - began_s >= self._limit_s:
            self._timeout.reschedule(now_s)
        else:
            self._timer = self._loop.call_at(began_s + self._limit_s, self._look)
