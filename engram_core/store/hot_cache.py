"""HotCache: the hottest rows of a slow tier, kept in host memory in front of it.

Delivers the inner tier's bits, whatever it holds at the moment. Knows no files but its list of hot
rows, and decides nothing itself: `hot_book` says where rows lie and what is on its way. It pays
where a miss is dear; in front of rows in host memory it only costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram_core import compiled
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
from engram_core.store.hot_size import cache_bytes
from engram_core.store.hot_tally import HotTally
from engram_core.store.kernels import as_words, check_ids, check_output

_UNSIGNED = {torch.bfloat16: np.uint16, torch.float32: np.uint32}

Words = npt.NDArray[Any]  # rows as unsigned words: uint16 for bf16, uint32 for float32


class HotCache:
    """A tier that keeps another tier's hottest rows in bf16.

    Threads may gather at once. A short lock covers the planning; rows are fetched and copied
    outside it. A row that one gather is fetching is waited for by the others, as long as the inner
    tier takes; should that fetch fail, one of them fetches it itself. A slot does not change while
    a gather reads it, and rows that find no slot are delivered without one. Each gather fetches
    into memory of its own, since others may copy from there.

    Args:
        inner: where missing rows come from; asked for each id once per gather.
        capacity_rows: rows to keep; a tenth of the table unless `budget_bytes` is given.
        budget_bytes: memory for slots, counters and the map of rows; at most the whole table is
            kept.
        admission_threshold: occurrences by which a row must lead its victim (see `HotPolicy`).
        seed: of the policy's sampling.
        name: label in statistics.

    Attributes:
        inner: as given. capacity_rows: rows that fit. nbytes: memory of the cache alone, without
        the inner tier's.

    Raises:
        ConfigError: an argument is out of range, or both sizes are given.
    """

    def __init__(
        self,
        inner: Tier,
        *,
        capacity_rows: int | None = None,
        budget_bytes: int | None = None,
        admission_threshold: int = 0,
        seed: int = 0,
        name: str = "hot",
    ) -> None:
        self.inner, self.name = inner, name
        self.num_rows, self.row_dim = inner.num_rows, inner.row_dim
        self.capacity_rows = _capacity(inner, capacity_rows, budget_bytes)
        self._policy = HotPolicy(
            self.num_rows,
            self.capacity_rows,
            admission_threshold=admission_threshold,
            seed=seed,
        )
        self._book: HotBook[npt.NDArray[np.uint16]] = HotBook(self._policy)
        self._slots = np.empty((self.capacity_rows, self.row_dim), dtype=np.uint16)
        self.nbytes = cache_bytes(self.num_rows, self.row_dim, self.capacity_rows)

    @property
    def is_blocking(self) -> bool:
        """As the inner tier: whether a gather will miss is not known before it is planned."""
        return self.inner.is_blocking

    @property
    def hits(self) -> int:
        """Occurrences that were read from slots, of all gathers so far."""
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

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` ``[n]`` into `out` ``[n, row_dim]`` (see `Tier.gather`).

        In the report each occurrence counts once: under `name` where it was read from a slot, else
        under the tiers that delivered its row; repeats of a missing row, and rows that another
        gather fetched, count under the inner tier's own name.
        """
        check_output(out, row_ids.size, self.row_dim)
        check_ids(row_ids, self.num_rows)
        words: Words = as_words(out).view(_UNSIGNED[out.dtype])
        # what compiled code accepts
        ids: RowIds = np.require(row_ids.reshape(-1), requirements=("C", "W"))
        tally = HotTally(self.name, self.inner.name)
        hits = self._deliver(ids, words, tally, is_lookup=True)
        self._book.count(hits, ids.size)
        return tally.report(ids.size, hits)

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

    def fetch(self, row_ids: RowIds) -> None:
        """Bring rows into slots that nobody has asked for yet; in no statistics."""
        rows = np.empty((row_ids.size, self.row_dim), dtype=np.uint16)
        self._deliver(row_ids, rows, HotTally(self.name, self.inner.name), is_lookup=False)

    def _deliver(self, ids: RowIds, words: Words, tally: HotTally, *, is_lookup: bool) -> int:
        """Write all rows, in as many rounds as others' fetches fail; returns the hits."""
        hits, rest = self._deliver_round(ids, words, tally, is_lookup=is_lookup)
        while rest.size:
            again = np.empty((rest.size, self.row_dim), dtype=words.dtype)
            _, failed = self._deliver_round(ids[rest], again, tally, is_lookup=False)
            words[rest] = again  # what failed once more is written over in the next round
            rest = rest[failed]
        return hits

    def _deliver_round(
        self, ids: RowIds, words: Words, tally: HotTally, *, is_lookup: bool
    ) -> tuple[int, npt.NDArray[np.intp]]:
        """Write what comes; returns the hits and the indices that other gathers failed to fetch."""
        plan, own, others = self._book.plan(ids, is_lookup=is_lookup)
        try:
            if plan.num_hits:
                _copy_rows(self._slots, plan.places, 0, words)
            self._book.end_reading(plan)
            if own is not None:
                rows = self._fetch(plan, own, tally)
                _copy_rows(rows, plan.places, own.first_place, words)
        except BaseException:
            self._book.give_up(plan, own)
            raise
        # one's own fetch has ended by now: two gathers can never wait for each other
        if not others:
            return plan.num_hits, np.empty(0, dtype=np.intp)
        with tally.waiting():
            return plan.num_hits, _await_rows(others, plan.places, words)

    def _fetch(
        self, plan: Plan, own: HotFetch[npt.NDArray[np.uint16]], tally: HotTally
    ) -> npt.NDArray[np.uint16]:
        """The missing rows ``[m, row_dim]``, which are in their slots afterwards."""
        staging = torch.empty((plan.missing.size, self.row_dim), dtype=torch.bfloat16)
        with tally.fetching():
            report = self.inner.gather(plan.missing, staging)
        tally.add(report, plan.missing.size)
        rows: npt.NDArray[np.uint16] = as_words(staging).view(np.uint16)
        _store_rows(rows, plan.reserved, self._slots)
        self._book.publish(plan, own, rows)
        return rows


def _capacity(inner: Tier, capacity_rows: int | None, budget_bytes: int | None) -> int:
    refuse_both_sizes(capacity_rows, budget_bytes)
    if budget_bytes is None:
        return default_capacity(inner) if capacity_rows is None else capacity_rows
    fixed = cache_bytes(inner.num_rows, inner.row_dim, 0)
    slot = cache_bytes(inner.num_rows, inner.row_dim, 1) - fixed
    return capacity_within(inner, budget_bytes, fixed, slot)


def _await_rows(
    others: list[HotFetch[npt.NDArray[np.uint16]]], places: npt.NDArray[np.int32], words: Words
) -> npt.NDArray[np.intp]:
    """Copy what others fetch, once it is there; returns the indices of what they failed to."""
    failed = [np.empty(0, dtype=np.intp)]
    for fetch in others:
        waiting = indices_of(fetch, places)
        if not waiting.size:
            continue
        fetch.done.wait()
        if fetch.rows is None:
            failed.append(waiting)
        else:
            _copy_rows(fetch.rows, places, fetch.first_place, words)
    return np.concatenate(failed)


def _copy_rows(
    source: npt.NDArray[np.uint16],
    places: npt.NDArray[np.int32],
    first_place: int,
    words: Words,
) -> None:
    """`hot_kernels.copy_rows`, compiled or in numpy."""
    kernels = compiled.kernels()
    if kernels is not None:
        is_upcast = words.dtype == np.uint32
        copy = kernels.copy_rows_upcast if is_upcast else kernels.copy_rows
        copy(source, places, first_place, words)
        return
    positions = places.astype(np.int64) - first_place
    chosen = np.flatnonzero((positions >= 0) & (positions < len(source)))
    rows = source[positions[chosen]].astype(words.dtype)
    words[chosen] = rows << 16 if words.dtype == np.uint32 else rows


def _store_rows(
    rows: npt.NDArray[np.uint16], reserved: npt.NDArray[np.int32], slots: npt.NDArray[np.uint16]
) -> None:
    """`hot_kernels.store_rows`, compiled or in numpy."""
    kernels = compiled.kernels()
    if kernels is not None:
        kernels.store_rows(rows, reserved, slots)
        return
    is_kept = reserved != NO_SLOT
    slots[reserved[is_kept]] = rows[is_kept]
