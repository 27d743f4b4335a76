"""LookupWorker: one thread that does tickets' lookups ahead of compute.

Decode steps go before prompts, prompts in the order of their admission. Prompt lookups start only
within a byte budget; one that does not fit waits for earlier tickets to close, and compute that
needs it sooner does it itself. Knows nothing about rows.
"""

from __future__ import annotations

import threading
from collections import deque

from engram_core.errors import StateError
from engram_core.lookup import Lookup
from engram_core.ticket import Ticket

Job = tuple[Ticket, Lookup]


class LookupWorker:
    """A queue of lookups and the thread that does them.

    Args:
        limit_bytes: what the looked-up rows of all open prompt tickets may occupy together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._reserved_bytes = 0
        self._steps: deque[Job] = deque()
        self._prompts: deque[Job] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="engram-prefetch", daemon=True)
        self._thread.start()

    @property
    def reserved_bytes(self) -> int:
        """Budget in use."""
        return self._reserved_bytes

    def submit(self, ticket: Ticket) -> None:
        """Queue a ticket's lookups in layer order.

        Raises:
            StateError: the worker was closed.
        """
        queue = self._steps if ticket.phase == "decode" else self._prompts
        with self._wake:
            if self._closed:
                raise StateError("the prefetcher was closed")
            queue.extend((ticket, lookup) for lookup in ticket.lookups)
            self._wake.notify()

    def forget(self, ticket: Ticket) -> None:
        """Return a closed ticket's budget and drop what it still has queued."""
        with self._wake:
            self._reserved_bytes -= ticket.reserved_bytes
            ticket.reserved_bytes = 0
            for queue in (self._steps, self._prompts):
                kept = [job for job in queue if job[0] is not ticket]
                if len(kept) < len(queue):
                    queue.clear()
                    queue.extend(kept)
            self._wake.notify()

    def close(self) -> None:
        """Stop after the running lookup; queued ones are left to whoever needs their rows."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            ticket, lookup = job
            ticket.run(lookup)
            del job, ticket, lookup  # an idle worker keeps no rows alive

    def _next_job(self) -> Job | None:
        """The next lookup, moved to running; waits for one, None once closed."""
        with self._wake:
            while not self._closed:
                job = self._start_first(self._steps) or self._start_first(self._prompts)
                if job is not None:
                    return job
                self._wake.wait()
            return None

    def _start_first(self, queue: deque[Job]) -> Job | None:
        while queue:
            ticket, lookup = queue[0]
            needed_bytes = ticket.lookup_bytes if ticket.phase == "prefill" else 0
            is_open = lookup.state == "pending" and needed_bytes <= self._limit_bytes
            if is_open and self._reserved_bytes + needed_bytes > self._limit_bytes:
                return None  # first come, first served: later ones wait behind it
            queue.popleft()
            if is_open and ticket.start(lookup):
                ticket.reserved_bytes += needed_bytes
                self._reserved_bytes += needed_bytes
                return ticket, lookup
        return None
