"""HotPolicy: which rows a hot cache keeps, and in which of its slots.

Least frequently used among a sample, with counters that fade. Knows row ids and slots but no rows'
values, no inner tier and no locks: its owner calls it by one thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engram_core import compiled, hot_kernels
from engram_core.errors import ConfigError
from engram_core.hot_kernels import ABSENT, HIGHEST_COUNT, NO_ROW, NO_SLOT

if TYPE_CHECKING:  # the planner runs this policy and needs no torch
    from engram_core.store.base import RowIds

MAX_ROWS = 2**31 - 1  # rows and places are int32
_HALVING_LOOKUPS = 4  # times the capacity: lookups in which every counter is halved once
_MAX_HALVINGS = 8  # more of them change nothing: an 8-bit counter is zero by then
_MIX = 0x9E3779B97F4A7C15  # spreads small seeds over 64 bits; odd, so no seed gives zero
_TABLE_ROW_BYTES = 4 + 1  # place and counter
_SLOT_BYTES = 4 + 8 + 4  # row, stamp and a place among the free slots


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the rows of one gather are read.

    Attributes:
        places: int32 ``[n]``: a slot, or a place on the way (see `hot_kernels`).
        missing: int64 ``[m]``: rows that this gather must fetch, each once.
        reserved: int32 ``[m]``: their slots, or -1.
        epoch: stamp of this gather.
        num_hits: occurrences in slots. num_waits: occurrences that somebody else is fetching.
    """

    places: npt.NDArray[np.int32]
    missing: RowIds
    reserved: npt.NDArray[np.int32]
    epoch: int
    num_hits: int
    num_waits: int


class HotPolicy:
    """Aged sampled LFU over a row-keyed map.

    A counter per table row, raised once per occurrence, up to 255. A missing row takes a free slot
    or that of the coldest of 8 sampled rows, unless it is colder itself. Counters are halved once
    in 4 x capacity lookups, by a sweep over the table that advances with the lookups: a lookup
    sweeps ``num_rows / (4 x capacity)`` bytes, 2.5 where a tenth of the table is kept.

    Args:
        num_rows: rows of the table.
        capacity: slots.
        admission_threshold: how much hotter than the victim a row must be to take its slot.
        seed: of the generator that samples; the same lookups with the same seed keep the same rows.

    Attributes:
        num_admissions: rows that entered a slot. num_evictions: rows that left one.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self, num_rows: int, capacity: int, *, admission_threshold: int = 0, seed: int = 0
    ) -> None:
        _check("num_rows", num_rows, 1, MAX_ROWS)
        _check("capacity_rows", capacity, 1, num_rows)
        _check("admission_threshold", admission_threshold, 0, HIGHEST_COUNT)
        _check("seed", seed, 0, 2**63 - 1)
        self.num_rows, self.capacity = num_rows, capacity
        self.num_admissions = self.num_evictions = 0
        self._place_of_row = np.full(num_rows, ABSENT, dtype=np.int32)
        self._counts = np.zeros(num_rows, dtype=np.uint8)
        self._row_of_slot = np.full(capacity, NO_ROW, dtype=np.int32)
        self._stamps = np.zeros(capacity, dtype=np.int64)
        self._free_slots = np.arange(capacity, dtype=np.int32)[::-1].copy()
        self._num_free = capacity
        self._tables = (
            self._place_of_row, self._counts, self._row_of_slot, self._stamps, self._free_slots,
        )  # fmt: skip
        self._threshold = admission_threshold
        self._random = np.array([(seed + 1) * _MIX % 2**64], dtype=np.uint64)
        self._epoch = 0
        self._reading: set[int] = set()
        self._sweep_position, self._sweep_rest = 0, 0

    @staticmethod
    def nbytes(num_rows: int, capacity: int) -> int:
        """Bytes that the tables of such a policy occupy."""
        return num_rows * _TABLE_ROW_BYTES + capacity * _SLOT_BYTES

    @property
    def num_resident(self) -> int:
        """Rows that lie in a slot."""
        return self.num_admissions - self.num_evictions

    def plan(self, row_ids: RowIds, first_place: int, *, is_lookup: bool = True) -> Plan:
        """Decide where the rows ``[n]`` are read, and where the missing ones will be kept.

        The slots of the plan stay as they are until `end_reading`; what it fetches has to be
        given to `publish` or `withdraw`.

        Args:
            row_ids: checked ids, C-contiguous.
            first_place: first of n places on the way that nobody uses.
            is_lookup: False where these occurrences were counted before.
        """
        if is_lookup:
            self._age(row_ids.size)
        self._epoch += 1
        self._reading.add(self._epoch)
        kernels = compiled.kernels() or hot_kernels
        places = np.empty(row_ids.size, dtype=np.int32)
        missing = np.empty(row_ids.size, dtype=np.int64)
        hits, num_missing, waits = kernels.find_places(
            row_ids, is_lookup, self._tables, self._epoch, first_place, places, missing
        )
        missing = missing[:num_missing]
        return Plan(places, missing, self._reserve(missing), self._epoch, int(hits), int(waits))

    def _reserve(self, missing: RowIds) -> npt.NDArray[np.int32]:
        reserved = np.empty(missing.size, dtype=np.int32)
        if missing.size == 0:
            return reserved
        kernels = compiled.kernels() or hot_kernels
        self._num_free, evictions = kernels.reserve_slots(
            missing,
            self._tables,
            self._random,
            min(self._reading),
            self._threshold,
            self._num_free,
            reserved,
        )
        self.num_evictions += int(evictions)
        return reserved

    def end_reading(self, plan: Plan) -> None:
        """The rows in slots were copied: the slots may change."""
        self._reading.discard(plan.epoch)

    def publish(self, plan: Plan) -> None:
        """The reserved slots are filled: from now on they are read."""
        is_kept = plan.reserved != NO_SLOT
        self._place_of_row[plan.missing] = plan.reserved  # NO_SLOT is ABSENT
        self._row_of_slot[plan.reserved[is_kept]] = plan.missing[is_kept]
        self.num_admissions += int(np.count_nonzero(is_kept))

    def withdraw(self, plan: Plan) -> None:
        """The missing rows did not come: nobody is fetching them, and their slots are free."""
        self._place_of_row[plan.missing] = ABSENT
        slots = plan.reserved[plan.reserved != NO_SLOT]
        self._free_slots[self._num_free : self._num_free + slots.size] = slots
        self._num_free += slots.size

    def hottest(self) -> tuple[RowIds, npt.NDArray[np.uint8]]:
        """Resident rows int64 ``[k]`` and their counters, hottest first, then by row."""
        rows = self._row_of_slot[self._row_of_slot != NO_ROW].astype(np.int64)
        counts = self._counts[rows]
        order = np.lexsort((rows, -counts.astype(np.int64)))
        return rows[order], counts[order]

    def raise_counts(self, row_ids: RowIds, counts: npt.NDArray[np.uint8] | np.uint8) -> None:
        """Let rows count as at least so hot."""
        self._counts[row_ids] = np.maximum(self._counts[row_ids], counts)

    def _age(self, lookups: int) -> None:
        """Halve the counters of the rows that the sweep passes in so many lookups."""
        advance, self._sweep_rest = divmod(
            self._sweep_rest + lookups * self.num_rows, _HALVING_LOOKUPS * self.capacity
        )
        advance = min(advance, _MAX_HALVINGS * self.num_rows)
        while advance:
            start = self._sweep_position
            part = self._counts[start : start + advance]
            np.right_shift(part, 1, out=part)
            advance -= part.size
            self._sweep_position = (start + part.size) % self.num_rows


def _check(name: str, value: int, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ConfigError(f"{name} is {value!r}; accepted: {lowest} to {highest}")
