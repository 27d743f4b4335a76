"""AccessPattern: how unevenly the rows of a memory are read."""

from __future__ import annotations

from typing import Any, Protocol


class AccessPattern(Protocol):
    """What part of all row reads falls on the hottest rows."""

    def share(self, rows: float) -> float:
        """Share of the reads that fall on the `rows` hottest rows of the whole memory.

        Never falls as `rows` grows; 0 for no row, 1 for all of them.
        """

    def to_dict(self) -> dict[str, Any]:
        """What the pattern was made from, as JSON-ready data."""
