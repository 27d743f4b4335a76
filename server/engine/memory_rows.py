"""MemoryRows: a sequence's claim on rows that were asked for in advance. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MemoryRows:
    """Rows ``offset ..`` of a ticket, for the positions from ``first_position`` on.

    Attributes:
        ticket: an `engram_core.prefetch.Ticket`; several sequences share a decode step's.
        first_position: absolute position of the first covered token.
        num_tokens: covered tokens.
        offset: the ticket's row of the first covered token.
    """

    ticket: Any
    first_position: int
    num_tokens: int
    offset: int = 0

    def covers(self, start: int, stop: int) -> bool:
        """Whether the positions ``start`` to ``stop`` (exclusive) are covered."""
        return self.first_position <= start and stop <= self.first_position + self.num_tokens

    def row_of(self, position: int) -> int:
        """The ticket's row of a covered position."""
        return self.offset + position - self.first_position
