"""ShardedRowSource: several sources that each have some heads of the same memory, as one.

Every row id goes to the source whose range owns it; sources are asked at the same time. Knows no
protocol and no retries: one source that fails fails the read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engram_core.errors import (
    ConfigError,
    MismatchError,
    TierError,
    TierRefusedError,
    TierTimeoutError,
)
from engram_core.store.base import RowIds
from engram_core.store.row_source import (
    RowSource,
    RowSourceDescription,
    RowWords,
    ServedTable,
)


class ShardedRowSource:
    """Sources that together have every row of every table, none of them twice.

    Who has what is asked at the first use and again after a refusal, so that servers may come back
    with other heads. One thread per source is kept open.

    Args:
        sources: at least one; closed with this.

    Raises:
        ConfigError: there is no source.
    """

    def __init__(self, sources: Sequence[RowSource]) -> None:
        if not sources:
            raise ConfigError("sources is empty; accepted: one or more")
        self.name = ", ".join(source.name for source in sources)
        self._sources = tuple(sources)
        self._threads = [ThreadPoolExecutor(1, f"rows-{i}") for i in range(len(sources))]
        self._lock = threading.Lock()
        self._plan: _Plan | None = None

    def describe(self, timeout_s: float) -> RowSourceDescription:
        """What all sources have together (see `RowSource.describe`).

        Raises:
            TierRefusedError: they serve different memories, or not every row exactly once; the
                sentence says which.
        """
        return self._planned(time.monotonic() + timeout_s, timeout_s).description

    def read_rows(self, table: str, row_ids: RowIds, timeout_s: float) -> RowWords:
        """The rows ``[n, row_dim]`` (see `RowSource.read_rows`)."""
        deadline_s = time.monotonic() + timeout_s
        owners = self._planned(deadline_s, timeout_s).owners.get(table)
        if owners is None:
            raise TierRefusedError(f"table {table!r} is served by none of {self.name}")
        try:
            return self._read(table, row_ids, owners.of(row_ids), deadline_s, timeout_s)
        except TierRefusedError:
            with self._lock:
                self._plan = None
            raise

    def close(self) -> None:
        """Close the sources and let the threads go."""
        for thread, source in zip(self._threads, self._sources, strict=True):
            thread.shutdown(wait=False, cancel_futures=True)
            source.close()

    def _read(
        self,
        table: str,
        row_ids: RowIds,
        owners: npt.NDArray[np.intp],
        deadline_s: float,
        timeout_s: float,
    ) -> RowWords:
        order = np.argsort(owners, kind="stable")
        edges = np.searchsorted(owners[order], np.arange(len(self._sources) + 1))
        places = {
            index: order[edges[index] : edges[index + 1]]
            for index in range(len(self._sources))
            if edges[index] < edges[index + 1] or row_ids.size == 0
        }
        pending = {
            index: self._threads[index].submit(
                self._read_part, index, table, row_ids[where], deadline_s, timeout_s
            )
            for index, where in places.items()
        }
        parts = self._collect(pending, deadline_s, timeout_s)
        return _reassemble(parts, places, row_ids.size)

    def _read_part(
        self, index: int, table: str, row_ids: RowIds, deadline_s: float, timeout_s: float
    ) -> RowWords:
        left_s = deadline_s - time.monotonic()  # an earlier read may have held the thread
        if left_s <= 0:
            raise self._too_late(index, timeout_s)
        return self._sources[index].read_rows(table, row_ids, left_s)

    def _collect(
        self, pending: Mapping[int, Future[RowWords]], deadline_s: float, timeout_s: float
    ) -> dict[int, RowWords]:
        """The parts; the first failure ends the wait and cancels what has not begun."""
        parts = {}
        try:
            # a server that is left alone says so at once: nobody else is waited for then
            done, _ = wait(
                pending.values(), max(0.0, deadline_s - time.monotonic()), FIRST_EXCEPTION
            )
            first_failed = sorted(
                pending.items(), key=lambda each: each[1] not in done or not each[1].exception()
            )
            for index, future in first_failed:
                parts[index] = self._await(index, future, deadline_s, timeout_s)
        finally:
            for future in pending.values():
                future.cancel()
        return parts

    def _await(
        self, index: int, future: Future[RowWords], deadline_s: float, timeout_s: float
    ) -> RowWords:
        try:
            return future.result(max(0.0, deadline_s - time.monotonic()))
        except FutureTimeoutError:
            raise self._too_late(index, timeout_s) from None

    def _too_late(self, index: int, timeout_s: float) -> TierError:
        name = self._sources[index].name
        return TierTimeoutError(f"{name} did not answer within {timeout_s:.3g} s")

    def _planned(self, deadline_s: float, timeout_s: float) -> _Plan:
        with self._lock:
            plan = self._plan
        if plan is None:
            found = []
            for index, source in enumerate(self._sources):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise self._too_late(index, timeout_s)
                found.append(source.describe(left_s))
            plan = _make_plan(found, [source.name for source in self._sources])
            with self._lock:
                self._plan = plan
        return plan


class _Owners(NamedTuple):
    """Which source has which rows of a table."""

    starts: RowIds  # first rows of the ranges, ascending
    sources: npt.NDArray[np.intp]  # whose range it is

    def of(self, row_ids: RowIds) -> npt.NDArray[np.intp]:
        """The source of each row ``[n]``; a row of no range goes where it is refused."""
        ranges = np.searchsorted(self.starts, row_ids, side="right") - 1
        return self.sources[np.maximum(ranges, 0)]


class _Plan(NamedTuple):
    description: RowSourceDescription
    owners: Mapping[str, _Owners]


def _make_plan(found: Sequence[RowSourceDescription], names: Sequence[str]) -> _Plan:
    """Who has what.

    Raises:
        TierRefusedError: the descriptions contradict each other or leave rows out.
    """
    first = found[0]
    try:
        for name, each in zip(names, found, strict=True):
            _expect(name, "memory", first.memory, each.memory)
            _expect(name, "tables", _shapes(first), _shapes(each))
    except MismatchError as error:
        raise TierRefusedError(str(error)) from None
    owners = {
        table: _owners_of(table, [each.tables[table] for each in found], names)
        for table in first.tables
    }
    whole = {
        name: ServedTable(table.num_rows, table.row_dim, ((0, table.num_rows),))
        for name, table in first.tables.items()
    }
    return _Plan(RowSourceDescription(first.memory, whole), owners)


def _owners_of(name: str, shards: Sequence[ServedTable], names: Sequence[str]) -> _Owners:
    ranges = sorted(
        (start, stop, index) for index, shard in enumerate(shards) for start, stop in shard.ranges
    )
    _check_cover(name, shards[0].num_rows, ranges, names)
    starts = np.array([start for start, _, _ in ranges], dtype=np.int64)
    return _Owners(starts, np.array([index for _, _, index in ranges], dtype=np.intp))


def _check_cover(
    name: str, num_rows: int, ranges: Sequence[tuple[int, int, int]], names: Sequence[str]
) -> None:
    """Refuse ascending ranges that leave a row out or have one twice."""
    expected = 0
    for start, stop, _ in [*ranges, (num_rows, num_rows, 0)]:
        if start != expected:
            who = "more than one" if start < expected else "none"
            row = min(start, expected)
            raise TierRefusedError(f"row {row} of {name} is served by {who} of {', '.join(names)}")
        expected = stop


def _shapes(description: RowSourceDescription) -> dict[str, tuple[int, int]]:
    return {name: (t.num_rows, t.row_dim) for name, t in sorted(description.tables.items())}


def _expect(where: str, what: str, expected: object, found: object) -> None:
    if expected != found:
        raise MismatchError(what, expected=expected, found=found, where=where)


def _reassemble(
    parts: Mapping[int, RowWords], places: Mapping[int, npt.NDArray[np.intp]], num_rows: int
) -> RowWords:
    """The parts in the order that was asked for."""
    widths = {part.shape[1] for part in parts.values()}
    if len(widths) != 1:
        raise TierRefusedError(f"the servers' rows have {sorted(widths)} values; accepted: equal")
    rows = np.empty((num_rows, widths.pop()), dtype=np.int16)
    for index, part in parts.items():
        rows[places[index]] = part
    return rows
