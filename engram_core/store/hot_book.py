"""HotBook: what any cache of hot rows writes down: where rows lie, who fetches them, what was hit.

`hot_policy` and `hot_fetches` behind one lock. Knows no rows' values: a cache keeps those, in host
memory (`hot_cache`) or on a device (`device_cache`).
"""

from __future__ import annotations

import threading
from typing import Generic

import numpy as np
import numpy.typing as npt

from engram_core.errors import ConfigError
from engram_core.stats import HotCacheStats
from engram_core.store.base import RowIds, Tier
from engram_core.store.hot_fetches import HotFetch, HotFetches, Landed
from engram_core.store.hot_policy import HotPolicy, Plan

_DEFAULT_SHARE = 10  # a tenth of the table's rows


class HotBook(Generic[Landed]):
    """The books of one cache; any thread may call.

    A gather plans, fetches what its plan misses and publishes that or gives it up. Slots that a
    plan reads stay as they are until `end_reading`.

    Args:
        policy: decides which rows are kept.

    Attributes:
        policy: as given; read it under no lock for totals only.
    """

    def __init__(self, policy: HotPolicy) -> None:
        self.policy = policy
        self._fetches: HotFetches[Landed] = HotFetches(policy.capacity)
        self._hits = self._misses = 0
        self._lock = threading.Lock()

    @property
    def hits(self) -> int:
        """Occurrences that were read from slots so far."""
        return self._hits

    @property
    def misses(self) -> int:
        """Occurrences that were not."""
        return self._misses

    @property
    def hit_rate(self) -> float:
        """Share of hits among all occurrences so far; 0 before the first."""
        with self._lock:
            return self._hits / max(1, self._hits + self._misses)

    @property
    def resident_rows(self) -> int:
        """Rows that lie in a slot now."""
        with self._lock:
            return self.policy.num_resident

    def stats(self, nbytes: int) -> HotCacheStats:
        """All that was counted, at one moment, of a cache that takes so many bytes."""
        with self._lock:
            return HotCacheStats(
                self._hits,
                self._misses,
                self.policy.num_admissions,
                self.policy.num_evictions,
                self.policy.num_resident,
                self.policy.capacity,
                nbytes,
            )

    def count(self, hits: int, num_ids: int) -> None:
        """A gather of so many occurrences was delivered."""
        with self._lock:
            self._hits += hits
            self._misses += num_ids - hits

    def hottest(self) -> tuple[RowIds, npt.NDArray[np.uint8]]:
        """Rows in slots int64 ``[k]`` and their counters, hottest first."""
        with self._lock:
            return self.policy.hottest()

    def raise_counts(self, row_ids: RowIds, counts: npt.NDArray[np.uint8] | np.uint8) -> None:
        """Let rows count as at least so hot."""
        with self._lock:
            self.policy.raise_counts(row_ids, counts)

    def plan(
        self, ids: RowIds, *, is_lookup: bool
    ) -> tuple[Plan, HotFetch[Landed] | None, list[HotFetch[Landed]]]:
        """Where rows are read, the fetch that this gather owes, and those that it may wait for."""
        with self._lock:
            first_place = self._fetches.free_range(ids.size)
            plan = self.policy.plan(ids, first_place, is_lookup=is_lookup)
            own = None
            if plan.missing.size:
                own = self._fetches.begin(first_place, plan.missing.size)
            return plan, own, self._fetches.others(own) if plan.num_waits else []

    def end_reading(self, plan: Plan) -> None:
        """The rows in slots were read: the slots may change."""
        with self._lock:
            self.policy.end_reading(plan)

    def publish(self, plan: Plan, own: HotFetch[Landed], rows: Landed) -> None:
        """The missing rows are there, and in their slots."""
        with self._lock:
            self.policy.publish(plan)
            self._fetches.end(own, rows)

    def give_up(self, plan: Plan, own: HotFetch[Landed] | None) -> None:
        """Leave nothing of a broken gather behind; whoever waits for its rows is on their own."""
        with self._lock:
            self.policy.end_reading(plan)
            if own is not None and not own.done.is_set():
                self.policy.withdraw(plan)
                self._fetches.end(own, None)


def default_capacity(tier: Tier) -> int:
    """Rows that a cache of `tier` keeps unless it is told otherwise."""
    return max(1, tier.num_rows // _DEFAULT_SHARE)


def capacity_within(tier: Tier, budget_bytes: int, fixed: int, slot: int) -> int:
    """Rows that a budget has room for, at most the whole table.

    Args:
        tier: whose rows are kept.
        budget_bytes: what may be used.
        fixed: bytes that are used whatever is kept.
        slot: bytes per kept row.

    Raises:
        ConfigError: it is no number of bytes or has no room for one row.
    """
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int):
        raise ConfigError(f"budget_bytes is {budget_bytes!r}; accepted: a whole number of bytes")
    if budget_bytes < fixed + slot:
        books = f"the map and the counters of {tier.num_rows} rows with " if fixed else ""
        raise ConfigError(
            f"budget_bytes is {budget_bytes}; accepted: at least {fixed + slot}, {books}one slot"
        )
    return min(tier.num_rows, (budget_bytes - fixed) // slot)


def refuse_both_sizes(capacity_rows: int | None, budget_bytes: int | None) -> None:
    """Refuse two answers to one question.

    Raises:
        ConfigError: both are given.
    """
    if capacity_rows is not None and budget_bytes is not None:
        raise ConfigError(
            f"capacity_rows is {capacity_rows!r} beside budget_bytes {budget_bytes!r}; "
            "accepted: one of the two"
        )


def indices_of(fetch: HotFetch[Landed], places: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """Indices of the places that belong to a fetch."""
    is_there = (places >= fetch.first_place) & (places < fetch.first_place + fetch.num_rows)
    return np.flatnonzero(is_there)
