"""PhaseShare: turns what was done since into the fraction of a phase. Shows nothing itself."""

from __future__ import annotations

from collections.abc import Callable


class PhaseShare:
    """Called with the bytes or rows that were done since its last call.

    Args:
        show: receives the phase and the fraction of it that is done, 0 to 1.
        phase: its name. total: of bytes or rows.
    """

    def __init__(self, show: Callable[[str, float], None], phase: str, total: int) -> None:
        self._show, self._phase = show, phase
        self._total, self._done = total, 0

    def __call__(self, done: int) -> None:
        """Add what was done."""
        self._done += done
        self._show(self._phase, min(1.0, self._done / max(1, self._total)))
