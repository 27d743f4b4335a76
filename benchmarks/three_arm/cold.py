"""ColdPages: drops files out of the system's cache before every turn, and watches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import page_cache


class ColdPages:
    """Call it before a turn.

    Args:
        files: whose pages are dropped. unmap: lets go of pages that are mapped, which would stay.

    Attributes:
        before: the largest share of a file in memory when a turn began.
        after: the same when one had ended.
    """

    def __init__(self, files: Sequence[Path], unmap: Callable[[], None]) -> None:
        self.before = self.after = 0.0
        self._files, self._unmap = tuple(files), unmap
        self._has_begun = False

    def __call__(self) -> None:
        """Drop the pages."""
        self.end_turn()
        self._unmap()
        page_cache.drop(self._files)
        self.before = max(self.before, self._share())
        self._has_begun = True

    def end_turn(self) -> None:
        """See what the last turn left in memory."""
        if self._has_begun:
            self.after = max(self.after, self._share())

    def _share(self) -> float:
        return max((page_cache.resident_share(path) for path in self._files), default=0.0)
