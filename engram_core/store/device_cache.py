"""DeviceCache: the hottest rows of a host, SSD or remote tier, kept in the device's own memory.

A lookup sends the missing rows and the places of all rows in one copy, and the device puts the rows
of the step together and stores what was admitted: no row crosses twice. Delivers the inner tier's
bits. Decides nothing itself: `hot_book` says where rows lie and what is on its way.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

from engram_core.device import Event
from engram_core.device_lane import DeviceLane
from engram_core.errors import StateError
from engram_core.hot_kernels import NO_SLOT
from engram_core.stats import HotCacheStats
from engram_core.store.base import RowIds, Tier, TierReport
from engram_core.store.hot_book import (
    HotBook,
    capacity_within,
    default_capacity,
    indices_of,
    refuse_both_sizes,
)
from engram_core.store.hot_fetches import HotFetch
from engram_core.store.hot_policy import HotPolicy, Plan
from engram_core.store.hot_tally import HotTally
from engram_core.store.kernels import check_ids
from engram_core.store.row_moves import RowMove, SentRows, send

_VALUE_BYTES = 2
_Fetch = HotFetch[SentRows]


class DeviceCache:
    """A tier that keeps another tier's hottest rows in bf16 on a device.

    Threads may look up at once. A row that one lookup is fetching is waited for by the others, and
    read where it landed on the device; should that fetch fail, one of them fetches it itself. All
    reads and writes of slots happen on one lane, and a slot that a lookup reads is given to no
    other row before the device has passed that lookup. Rows that find no slot are delivered
    without one.

    Args:
        inner: where missing rows come from; asked for each id once per lookup.
        lane: the way onto the device; caches may share one.
        capacity_rows: rows to keep; a tenth of the table unless `budget_bytes` is given.
        budget_bytes: device memory for slots; at most the whole table is kept.
        admission_threshold: occurrences by which a row must lead its victim (see `HotPolicy`).
        seed: of the policy's sampling.
        name: label of hits in statistics.

    Attributes:
        inner: as given. capacity_rows: rows that fit.
        host_nbytes: host memory of the map of rows and the counters.

    Raises:
        ConfigError: an argument is out of range, or both sizes are given.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        inner: Tier,
        lane: DeviceLane,
        *,
        capacity_rows: int | None = None,
        budget_bytes: int | None = None,
        admission_threshold: int = 0,
        seed: int = 0,
        name: str = "device",
    ) -> None:
        self.inner, self.name = inner, name
        self.num_rows, self.row_dim = inner.num_rows, inner.row_dim
        self.capacity_rows = _capacity(inner, capacity_rows, budget_bytes)
        self.host_nbytes = HotPolicy.nbytes(self.num_rows, self.capacity_rows)
        self._policy = HotPolicy(
            self.num_rows,
            self.capacity_rows,
            admission_threshold=admission_threshold,
            seed=seed,
        )
        self._book: HotBook[SentRows] = HotBook(self._policy)
        self._lane = lane
        shape = (self.capacity_rows, self.row_dim)
        self._slots: torch.Tensor | None = lane.empty(shape, torch.bfloat16)
        self._in_flight: deque[tuple[Plan, Event]] = deque()
        self._lock = threading.Lock()

    @property
    def is_blocking(self) -> bool:
        """As the inner tier: whether a lookup will miss is not known before it is planned."""
        return self.inner.is_blocking

    @property
    def nbytes(self) -> int:
        """Device memory of the slots; 0 once closed."""
        return 0 if self._slots is None else self.capacity_rows * self.row_dim * _VALUE_BYTES

    @property
    def hits(self) -> int:
        """Occurrences that were read from slots, of all lookups so far."""
        return self._book.hits

    @property
    def misses(self) -> int:
        """Occurrences that were not: fetched, repeats of what was fetched, or waited for."""
        return self._book.misses

    @property
    def hit_rate(self) -> float:
        """Share of hits among all occurrences so far; 0 before the first."""
        return self._book.hit_rate

    @property
    def admissions(self) -> int:
        """Rows that entered a slot so far."""
        return self._policy.num_admissions

    @property
    def evictions(self) -> int:
        """Rows that left a slot so far."""
        return self._policy.num_evictions

    @property
    def resident_rows(self) -> int:
        """Rows that lie in a slot now."""
        return self._book.resident_rows

    def stats(self) -> HotCacheStats:
        """All of these at one moment."""
        return self._book.stats(self.nbytes)

    def hot_rows(self) -> RowIds:
        """Ids of the rows in slots, hottest first: int64 ``[resident_rows]``."""
        return self._book.hottest()[0]

    def hottest(self) -> tuple[RowIds, npt.NDArray[np.uint8]]:
        """Rows in slots int64 ``[k]`` and their counters, hottest first."""
        return self._book.hottest()

    def raise_counts(self, row_ids: RowIds, counts: npt.NDArray[np.uint8] | np.uint8) -> None:
        """Let rows count as at least so hot."""
        self._book.raise_counts(row_ids, counts)

    @torch.inference_mode(False)
    def fetch(self, row_ids: RowIds) -> None:
        """Bring rows into slots that nobody has asked for yet; in no statistics."""
        tally = HotTally(self.name, self.inner.name)
        rows = self._lane.empty((row_ids.size, self.row_dim), torch.bfloat16)
        self._land_all(row_ids, rows, tally, is_lookup=False)
        self._lane.event().wait()  # the next piece finds these slots open

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write rows into host memory, where the inner tier is nearer (see `Tier.gather`)."""
        return self.inner.gather(row_ids, out)

    @torch.inference_mode(False)
    def land(self, row_ids: RowIds) -> tuple[torch.Tensor, Event, TierReport]:
        """Start bringing the rows `row_ids` ``[n]`` together on the device.

        Returns:
            The rows, bf16 ``[n, row_dim]``; the event after which they can be read; a report that
            counts each occurrence once: under `name` where it was read from a slot, else under
            the tiers that delivered its row. Repeats of a missing row, and rows that another
            lookup fetched, count under the inner tier's own name.

        Raises:
            IdRangeError: an id is out of range. TierError: the rows could not be delivered.
            StateError: the cache was closed.
        """
        check_ids(row_ids, self.num_rows)
        # what compiled code accepts
        ids: RowIds = np.require(row_ids.reshape(-1), requirements=("C", "W"))
        tally = HotTally(self.name, self.inner.name)
        rows = self._lane.empty((ids.size, self.row_dim), torch.bfloat16)
        hits = self._land_all(ids, rows, tally, is_lookup=True)
        self._book.count(hits, ids.size)
        return rows, self._lane.event(), tally.report(ids.size, hits)

    def close(self) -> None:
        """Give the device memory back, once the device has done what is queued; idempotent."""
        with self._lock:
            self._slots = None  # the lane's own memory: whoever gets it next comes behind
            self._in_flight.clear()

    def _land_all(self, ids: RowIds, out: torch.Tensor, tally: HotTally, *, is_lookup: bool) -> int:
        """Send all rows, in as many rounds as others' fetches fail; returns the hits."""
        hits, rest = self._land_round(ids, out, None, tally, is_lookup=is_lookup)
        while rest.size:
            _, failed = self._land_round(ids[rest], out, rest, tally, is_lookup=False)
            rest = rest[failed]
        return hits

    def _land_round(
        self,
        ids: RowIds,
        out: torch.Tensor,
        out_rows: npt.NDArray[np.intp] | None,
        tally: HotTally,
        *,
        is_lookup: bool,
    ) -> tuple[int, npt.NDArray[np.intp]]:
        """Send what comes into `out_rows` (None: all) of `out`.

        Returns the hits, and the indices that other lookups failed to fetch.
        """
        slots = self._open_slots()
        self._end_readings()
        plan, own, others = self._book.plan(ids, is_lookup=is_lookup)
        try:
            moves = _hit_moves(plan, slots, out, out_rows)
            if own is not None:
                moves += _own_moves(plan, own, slots, out, out_rows)
            if moves:
                self._send(plan, own, moves, tally)
            else:
                self._book.end_reading(plan)
        except BaseException:
            self._book.give_up(plan, own)
            raise
        # one's own fetch has ended by now: two lookups can never wait for each other
        return plan.num_hits, self._take_over(others, plan, out, out_rows, tally)

    def _send(self, plan: Plan, own: _Fetch | None, moves: list[RowMove], tally: HotTally) -> None:
        def fetch(rows: torch.Tensor) -> None:
            with tally.fetching():
                report = self.inner.gather(plan.missing, rows)
            tally.add(report, plan.missing.size)

        shape = (plan.missing.size, self.row_dim)
        sent, event, crossed_bytes = send(self._lane, moves, shape, fetch)
        tally.add(TierReport(transferred_bytes=crossed_bytes), 0)
        if own is not None:
            self._book.publish(plan, own, sent)  # whoever reads the slots now queues behind
        with self._lock:
            self._in_flight.append((plan, event))

    def _take_over(
        self,
        others: list[_Fetch],
        plan: Plan,
        out: torch.Tensor,
        out_rows: npt.NDArray[np.intp] | None,
        tally: HotTally,
    ) -> npt.NDArray[np.intp]:
        """Read on the device what other lookups brought there; returns what they failed to."""
        moves, failed = [], [np.empty(0, dtype=np.intp)]
        for fetch in others:
            waiting = indices_of(fetch, plan.places)
            if not waiting.size:
                continue
            with tally.waiting():
                fetch.done.wait()
            if fetch.rows is None:
                failed.append(waiting)
            else:
                at = waiting if out_rows is None else out_rows[waiting]
                moves.append(RowMove(out, at, fetch.rows, plan.places[waiting] - fetch.first_place))
        if moves:
            _, _, crossed_bytes = send(self._lane, moves, (0, self.row_dim), lambda _rows: None)
            tally.add(TierReport(transferred_bytes=crossed_bytes), 0)
        return np.concatenate(failed)

    def _open_slots(self) -> torch.Tensor:
        slots = self._slots
        if slots is None:
            raise StateError("the device cache was closed; its rows are gone")
        return slots

    def _end_readings(self) -> None:
        """Let go of the slots of lookups that the device has passed; they pass in order."""
        with self._lock:
            while self._in_flight and self._in_flight[0][1].query():
                plan, _ = self._in_flight.popleft()
                self._book.end_reading(plan)


def _hit_moves(
    plan: Plan, slots: torch.Tensor, out: torch.Tensor, out_rows: npt.NDArray[np.intp] | None
) -> list[RowMove]:
    """Every row from its slot; what has none reads some other, and is written over."""
    if plan.num_hits == 0:
        return []
    in_slots = np.where(plan.places < slots.shape[0], plan.places, 0)
    return [RowMove(out, out_rows, slots, in_slots)]


def _own_moves(
    plan: Plan,
    own: _Fetch,
    slots: torch.Tensor,
    out: torch.Tensor,
    out_rows: npt.NDArray[np.intp] | None,
) -> list[RowMove]:
    """The fetched rows to where they were asked for, and those that are admitted to their slots."""
    found = indices_of(own, plan.places)
    at: npt.NDArray[np.intp] | None = found if out_rows is None else out_rows[found]
    if out_rows is None and found.size == plan.places.size:
        at = None
    moves = [RowMove(out, at, None, plan.places[found] - own.first_place)]
    kept = np.flatnonzero(plan.reserved != NO_SLOT)
    if kept.size:
        moves.append(RowMove(slots, plan.reserved[kept], None, kept))
    return moves


def _capacity(inner: Tier, capacity_rows: int | None, budget_bytes: int | None) -> int:
    refuse_both_sizes(capacity_rows, budget_bytes)
    if budget_bytes is None:
        return default_capacity(inner) if capacity_rows is None else capacity_rows
    return capacity_within(inner, budget_bytes, 0, inner.row_dim * _VALUE_BYTES)
