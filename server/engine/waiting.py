"""WaitingQueue: sequences that hold no KV blocks yet. No torch here.

The highest priority goes first and, among equals, the one that came first. Nobody is overtaken
for ever: after `MAX_OVERTAKEN` times it is a sequence's turn, whatever the others' priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from server.engine.sequence import Sequence

MAX_OVERTAKEN = 16


class WaitingQueue:
    """A queue that also knows how many tokens wait; the counts may be read from any thread."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()  # in order of arrival
        self._head: Sequence | None = None  # None: to be found
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._queue

    @property
    def head(self) -> Sequence | None:
        """The sequence whose turn is next."""
        if self._head is None:
            self._head = min(self._queue, key=_rank, default=None)  # the first of equals
        return self._head

    def append(self, sequence: Sequence) -> None:
        """Queue a new sequence behind the others."""
        self._queue.append(sequence)
        if self._head is not None and _rank(sequence) < _rank(self._head):
            self._head = sequence
        self.num_tokens += sequence.num_tokens

    def put_back(self, sequence: Sequence) -> None:
        """Queue a preempted sequence before its equals: it is older than all of them."""
        self._queue.appendleft(sequence)
        self._head = None
        self.num_tokens += sequence.num_tokens

    def pop(self, sequence: Sequence) -> None:
        """Take a sequence whose turn it is; whoever came before it was overtaken."""
        for other in self._queue:
            if other is sequence:
                break
            other.num_overtaken += 1
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out (cancelled or too late)."""
        self._queue.remove(sequence)
        self._head = None
        self.num_tokens -= sequence.num_tokens


def _rank(sequence: Sequence) -> tuple[bool, int]:
    patient = sequence.num_overtaken < MAX_OVERTAKEN
    return patient, -sequence.request.priority if patient else 0
