"""Events on their way from the engine's thread to the event loop.

The engine sends an event per sequence and step. Waking the loop for each would cost a system call
and a turn of the loop each time; here the first event of a step wakes it, and those that follow
until it comes round travel along.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from server.engine.types import Event

Receiver = Callable[[Event], None]


class Mailbox:
    """One per event loop; events of all requests, in the order in which they were sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Receiver, Event]] = deque()
        self._is_called = False

    def put(self, receiver: Receiver, event: Event) -> None:
        """Have `receiver` called with `event` on the loop; from any thread, never blocks."""
        self._waiting.append((receiver, event))
        if self._is_called:
            return
        self._is_called = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # before looking: what is put from now on calls again
        for _ in range(len(self._waiting)):
            receiver, event = self._waiting.popleft()
            receiver(event)
