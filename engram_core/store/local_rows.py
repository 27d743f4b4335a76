"""LocalRowSource: a row source out of tiers in this process, which is what a row server serves.

Knows which rows of a table it has; knows no network.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engram_core.errors import ConfigError, IdRangeError, TierRefusedError
from engram_core.store.base import RowIds, Tier
from engram_core.store.kernels import as_words
from engram_core.store.row_ranges import RowRanges
from engram_core.store.row_source import RowSourceDescription, RowWords


class LocalRowSource:
    """Rows in memory.

    Args:
        description: what is served.
        tiers: for every table of it the rows of its ranges, packed one range behind the other.
        name: in error sentences.

    Raises:
        ConfigError: a tier has other rows than the description says.
    """

    def __init__(
        self,
        description: RowSourceDescription,
        tiers: Mapping[str, Tier],
        *,
        name: str = "this process",
    ) -> None:
        self.name = name
        self._description = description
        self._tiers = dict(tiers)
        self._ranges = {key: RowRanges(table.ranges) for key, table in description.tables.items()}
        for key, table in description.tables.items():
            expected = (self._ranges[key].num_rows, table.row_dim)
            found = (tiers[key].num_rows, tiers[key].row_dim) if key in tiers else "missing"
            if found != expected:
                raise ConfigError(f"the tier of {key} is {found}; accepted: {expected}")

    def describe(self, timeout_s: float = 0.0) -> RowSourceDescription:
        """What is served; at once."""
        return self._description

    def read_rows(self, table: str, row_ids: RowIds, timeout_s: float = 0.0) -> RowWords:
        """The rows ``[n, row_dim]`` (see `RowSource.read_rows`); does not wait.

        Raises:
            TierRefusedError: there is no such table, or a row is not among those served.
        """
        tier = self._tiers.get(table)
        if tier is None:
            known = ", ".join(self._tiers)
            raise TierRefusedError(f"table {table[:100]!r} is not served; accepted: {known}")
        try:
            places = self._ranges[table].places(row_ids)
        except IdRangeError as error:
            raise TierRefusedError(f"{table}: {error}") from None
        rows = torch.empty((row_ids.size, tier.row_dim), dtype=torch.bfloat16)
        tier.gather(places, rows)
        return as_words(rows)

    def close(self) -> None:
        """Nothing to let go."""
