"""FileState: what tells that a file was written to since somebody looked. Reads nothing itself."""

from __future__ import annotations

import os
from typing import NamedTuple, Self

from engram_core.errors import TierError


class FileState(NamedTuple):
    """A file's length in bytes and its time of change in ns."""

    num_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """What `os.stat` and `os.fstat` say."""
        return cls(status.st_size, status.st_mtime_ns)

    def check(self, found: FileState, name: str) -> None:
        """Refuse a file that was written to since.

        Raises:
            TierError: names the file and both states.
        """
        if found != self:
            raise TierError(
                f"{name} was changed while it is served (bytes and time of change were "
                f"{tuple(self)} and are {tuple(found)}); accepted: tables that nobody rewrites"
            )
