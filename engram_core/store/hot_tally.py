"""HotTally: what one gather of a hot cache did, collected while it does it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from engram_core.store.base import TierReport


class HotTally:
    """Adds up the inner tier's reports of one gather; starts its clock when it is made.

    Args:
        name: the cache's label. inner_name: the inner tier's.
    """

    def __init__(self, name: str, inner_name: str) -> None:
        self._name, self._inner_name = name, inner_name
        self._rows: dict[str, int] = {}
        self._durations: dict[str, float] = {}
        self._transferred_bytes = 0
        self._num_fetched = 0
        self._started_s = time.perf_counter()
        self._elsewhere_s = 0.0

    def add(self, report: TierReport, num_rows: int) -> None:
        """The inner tier delivered so many rows."""
        for name, rows in report.rows_by_tier.items():
            self._rows[name] = self._rows.get(name, 0) + rows
        for name, duration_s in report.duration_by_tier_s.items():
            self._durations[name] = self._durations.get(name, 0.0) + duration_s
        self._transferred_bytes += report.transferred_bytes
        self._num_fetched += num_rows

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """Around the inner tier's work, whose duration is in its own report."""
        started_s = time.perf_counter()
        yield
        self._elsewhere_s += time.perf_counter() - started_s

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for another gather's fetch: the inner tier's time as well."""
        started_s = time.perf_counter()
        yield
        waited_s = time.perf_counter() - started_s
        self._elsewhere_s += waited_s
        self._durations[self._inner_name] = self._durations.get(self._inner_name, 0.0) + waited_s

    def report(self, num_ids: int, hits: int) -> TierReport:
        """The report of a gather of `num_ids` occurrences, `hits` of them read from slots."""
        for name, rows in ((self._name, hits), (self._inner_name, self._repeats(num_ids, hits))):
            if rows:
                self._rows[name] = self._rows.get(name, 0) + rows
        own_s = time.perf_counter() - self._started_s - self._elsewhere_s
        self._durations[self._name] = self._durations.get(self._name, 0.0) + own_s
        return TierReport(self._rows, self._durations, self._transferred_bytes)

    def _repeats(self, num_ids: int, hits: int) -> int:
        return num_ids - hits - self._num_fetched
