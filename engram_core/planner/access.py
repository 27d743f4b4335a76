"""AccessPattern: how unevenly the rows of a memory are read, as caches of the server meet it."""

from __future__ import annotations

from typing import Any, Protocol


class AccessPattern(Protocol):
    """What part of all row reads a cache answers."""

    def share(self, rows: float) -> float:
        """Share of the reads that a warm cache of `rows` of the whole memory's rows answers.

        The cache is the server's (`store.hot_policy`): it learns which rows are hot while they are
        read. 0 for no row, 1 for all of them.
        """

    def to_dict(self) -> dict[str, Any]:
        """What the pattern was made from, as JSON-ready data."""
