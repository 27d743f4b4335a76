"""TextStream: the visible text of one generation, from token ids to what may be shown.

Joins the detokenizer and the stop matcher, and keeps the whole visible text. Knows nothing about
requests or events.
"""

from __future__ import annotations

from server.engine.detokenizer import Detokenizer
from server.engine.stopping import StopMatcher


class TextStream:
    """Visible text so far, and whether a stop string ended it."""

    def __init__(self, detokenizer: Detokenizer, matcher: StopMatcher) -> None:
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._pieces: list[str] = []

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was completed."""
        return self._matcher.matched is not None

    @property
    def text(self) -> str:
        """All text shown so far."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> tuple[str, str]:
        """Add a token; returns its own text and what may be shown now."""
        piece = self._detokenizer.push(token_id)
        return piece, self._show(self._matcher.push(piece))

    def finish(self) -> str:
        """What is still held back and is shown at the end."""
        if self.is_stopped:
            return ""
        rest = self._matcher.push(self._detokenizer.flush())
        return self._show(rest + self._matcher.flush())

    def _show(self, text: str) -> str:
        if text:
            self._pieces.append(text)
        return text
