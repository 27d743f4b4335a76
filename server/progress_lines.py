"""ProgressLines: how far a download or conversion is, as lines. Knows no terminal control."""

from __future__ import annotations

from typing import TextIO

TERMINAL_STEP = 1  # percent
FILE_STEP = 10  # percent; nobody watches a file grow


class ProgressLines:
    """Writes a line when a phase is a step further: every percent on a terminal, else every tenth.

    Args:
        stream: where the lines go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._step = TERMINAL_STEP if stream.isatty() else FILE_STEP
        self._shown: dict[str, int] = {}

    def __call__(self, phase: str, fraction: float) -> None:
        """Take the fraction of a phase that is done, 0 to 1."""
        percent = int(fraction * 100) // self._step * self._step
        if percent != self._shown.get(phase):
            self._shown[phase] = percent
            print(f"{phase}: {percent}%", file=self._stream, flush=True)
