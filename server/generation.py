"""One generation as the event loop sees it: the engine's events, and the way to stop it.

The bridge between the engine's thread and asyncio. Knows nothing about HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from server.engine.types import Event, FailureEvent, FinishEvent, Request
from server.mailbox import Mailbox

BACKSTOP_S = 5.0  # how much later than the engine this side enforces a deadline


class Generation:
    """The events of one submitted request; leaving its context aborts what has not ended.

    Made on the event loop; only `sink` may be called from another thread.

    Args:
        request: what was asked.
        mailbox: brings the engine's events to the event loop.
        abort: gives up the request of an id.
        on_close: called with the id when this generation is over.
    """

    def __init__(
        self,
        request: Request,
        mailbox: Mailbox,
        abort: Callable[[str], None],
        on_close: Callable[[str], None],
    ) -> None:
        self.request = request
        self._mailbox, self._abort, self._on_close = mailbox, abort, on_close
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._ended = False
        self._backstop = self._start_backstop(request.deadline_s)

    def _start_backstop(self, deadline_s: float | None) -> asyncio.TimerHandle | None:
        """The engine enforces deadlines; should it hang, the client is answered all the same."""
        if deadline_s is None:
            return None
        left_s = max(deadline_s - time.monotonic(), 0) + BACKSTOP_S
        return self._loop.call_later(left_s, self._expire)

    def _expire(self) -> None:
        self.push(FailureEvent("deadline", "the request took too long"))
        self._abort(self.request.id)

    def sink(self, event: Event) -> None:
        """Take an event on the engine's thread; never blocks and never raises."""
        self._mailbox.put(self.push, event)

    def push(self, event: Event) -> None:
        """Take an event on the event loop; what follows the end is dropped."""
        if self._ended:
            return
        self._ended = isinstance(event, FinishEvent | FailureEvent)
        self._events.append(event)
        self._arrived.set()

    async def next_events(self) -> list[Event]:
        """All events that are there, in order; waits for at least one.

        Not to be called after the end.
        """
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Give the request up if it has not ended, and forget it."""
        if not self._ended:
            self._ended = True
            self._abort(self.request.id)
        if self._backstop is not None:
            self._backstop.cancel()
        self._on_close(self.request.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
