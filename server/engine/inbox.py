"""Inbox: what other threads hand to the engine thread.

Counts what waits, so that the queue's limits hold however many threads submit at once. Knows
requests by id only; no torch here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from server.engine.sequence import Sequence
from server.engine.types import EngineClosedError, SubmitError


class Inbox:
    """New sequences and aborts, until the engine thread takes them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._wake = threading.Condition(self.lock)
        self._new: list[Sequence] = []
        self._aborts: list[str] = []
        self._in_flight: set[str] = set()
        self._closed: str | None = None

    @property
    def num_requests(self) -> int:
        """Sequences that were not taken yet."""
        return len(self._new)

    @property
    def num_tokens(self) -> int:
        """Their prompt tokens."""
        return sum(sequence.num_tokens for sequence in list(self._new))

    @property
    def num_in_flight(self) -> int:
        """Requests between `put` and `forget`."""
        return len(self._in_flight)

    def put(self, sequence: Sequence, admit: Callable[[Sequence], None]) -> None:
        """Hand over a sequence, after ``admit`` (under the lock) has agreed by not raising.

        Raises:
            EngineClosedError: `close` was called.
            SubmitError: a request of this id is in flight.
        """
        with self.lock:
            if self._closed is not None:
                raise EngineClosedError(self._closed)
            if sequence.id in self._in_flight:
                raise SubmitError(f"a request with id {sequence.id!r} is in flight already")
            admit(sequence)
            self._in_flight.add(sequence.id)
            self._new.append(sequence)
            self._wake.notify_all()

    def abort(self, request_id: str) -> None:
        """Ask for the end of a request; ids that are not in flight are dropped."""
        with self.lock:
            if request_id in self._in_flight:
                self._aborts.append(request_id)
                self._wake.notify_all()

    def take(self, accept: Callable[[Sequence], None]) -> list[str]:
        """Pass every new sequence to ``accept``; returns the ids to abort."""
        with self.lock:
            for sequence in self._new:
                accept(sequence)
            self._new.clear()
            aborts, self._aborts = self._aborts, []
            return aborts

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        with self.lock:
            self._in_flight.discard(request_id)
            self._wake.notify_all()

    def close(self, reason: str) -> None:
        """Refuse everything new, with this reason; the first reason stays."""
        with self.lock:
            self._closed = self._closed or reason

    def wake(self) -> None:
        """End a `wait` early."""
        with self.lock:
            self._wake.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Sleep until something arrives, or for ``timeout_s``."""
        with self.lock:
            if not self._new and not self._aborts:
                self._wake.wait(timeout_s)

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False when that took too long."""
        with self.lock:
            return self._wake.wait_for(lambda: not self._in_flight, timeout_s)
