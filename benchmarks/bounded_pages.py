"""Keeps files out of the system's page cache, and proves it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.page_cache import drop, resident_share

MOST_RESIDENT = 0.1


class BoundedPages:
    """Drops the pages of files between runs and notes how many were there.

    Args:
        paths: of the files; nobody may map them.

    Attributes:
        largest_before: the largest share of a file that lay in memory when a run began.
        largest_after: the same when it had ended.

    Raises:
        RuntimeError: the files' pages cannot be dropped.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self.largest_before = self.largest_after = 0.0
        self.before_run()
        if self.largest_before > MOST_RESIDENT:
            raise RuntimeError(
                f"{self.largest_before:.0%} of a table's file stay in memory; accepted: a folder "
                "on a disk, whose files nobody maps"
            )

    @property
    def is_bounded(self) -> bool:
        """Whether never more than a tenth of a file lay in memory."""
        return max(self.largest_before, self.largest_after) <= MOST_RESIDENT

    def before_run(self) -> None:
        """Drop all pages and note what stayed."""
        drop(self._paths)
        self.largest_before = max(self.largest_before, self._resident())

    def after_run(self) -> None:
        """Note what the run has brought in."""
        self.largest_after = max(self.largest_after, self._resident())

    def _resident(self) -> float:
        return max(map(resident_share, self._paths), default=0.0)
