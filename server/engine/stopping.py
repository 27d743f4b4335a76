"""StopMatcher: finds stop strings in text that arrives in pieces.

Only a suffix that may still become a stop string is held back. The match that is complete first
wins, the longest of those that end together; the outcome does not depend on how the text is cut
into pieces. Knows nothing about tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Holds back what may become a stop string and cuts at the first one."""

    def __init__(self, stops: Sequence[str], *, keep_stop: bool = False) -> None:
        self._stops = [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)
        self._keep_stop = keep_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Add text; returns what may be shown now. After a match nothing is shown any more."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        match = self._first_match(text)
        if match is not None:
            start, self.matched = match
            self._held = ""
            return text[:start] + (self.matched if self._keep_stop else "")
        shown = len(text) - self._held_length(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What was held back, when no stop string can follow any more."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """Start and stop string of the match that ends first; the longest of equal ends."""
        found = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _held_length(self, text: str) -> int:
        """Length of the longest suffix that is a proper prefix of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            suffix = text[-length:]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
