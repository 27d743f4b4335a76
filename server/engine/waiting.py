"""WaitingQueue: sequences that hold no KV blocks yet, first come first served. No torch here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from server.engine.sequence import Sequence


class WaitingQueue:
    """A FIFO that also knows how many tokens wait; the counts may be read from any thread."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()
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
        return self._queue[0] if self._queue else None

    def append(self, sequence: Sequence) -> None:
        """Queue a new sequence behind the others."""
        self._queue.append(sequence)
        self.num_tokens += sequence.num_tokens

    def put_back(self, sequence: Sequence) -> None:
        """Queue a preempted sequence before the others: it is older than all of them."""
        self._queue.appendleft(sequence)
        self.num_tokens += sequence.num_tokens

    def pop(self) -> Sequence:
        """Take the head."""
        sequence = self._queue.popleft()
        self.num_tokens -= sequence.num_tokens
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of the middle (cancelled or too late)."""
        self._queue.remove(sequence)
        self.num_tokens -= sequence.num_tokens
