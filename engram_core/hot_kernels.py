"""The hot cache's kernels in plain Python: where rows lie, which slots they get, copies of rows.

`compiled` compiles them; where numba is missing the first two run as they are, slowly and with
equal results. They change the tables of `store.hot_policy.HotPolicy`, so they run under its owner's
lock; the copies need none.

`tables` is (place_of_row int32 ``[num_rows]``, counts uint8 ``[num_rows]``, row_of_slot int32,
stamps int64, free_slots int32, each ``[capacity]``). A place below the capacity is a slot; one from
there on is a row on its way from the inner tier.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ABSENT = -1  # in place_of_row
NO_ROW = -1  # in row_of_slot: the slot is free, or waits for its row's values
NO_SLOT = -1
HIGHEST_COUNT = 255
SAMPLES = 8  # slots among which a victim is looked for


def find_places(
    row_ids: Any,
    is_lookup: bool,
    tables: Any,
    epoch: int,
    first_place: int,
    places: Any,
    missing: Any,
) -> tuple[int, int, int]:
    """Say where each row ``[n]`` will be read; count occurrences and protect the slots they use.

    A row that is nowhere gets the next place from `first_place` on and enters `missing` once.

    Returns:
        Occurrences in slots; rows missing; occurrences on their way for somebody else.
    """
    place_of_row, counts, _, stamps, _ = tables
    capacity = stamps.shape[0]
    hits, num_missing, waits = 0, 0, 0
    for index in range(row_ids.shape[0]):
        row = row_ids[index]
        if is_lookup and counts[row] < HIGHEST_COUNT:
            counts[row] += 1
        place = place_of_row[row]
        if place == ABSENT:
            place = np.int32(first_place + num_missing)
            place_of_row[row] = place
            missing[num_missing] = row
            num_missing += 1
        elif place < capacity:
            stamps[place] = epoch
            hits += 1
        elif place < first_place or place >= first_place + num_missing:
            waits += 1
        places[index] = place
    return hits, num_missing, waits


def reserve_slots(
    missing: Any,
    tables: Any,
    random: Any,
    oldest: int,
    threshold: int,
    num_free: int,
    reserved: Any,
) -> tuple[int, int]:
    """Find a slot for each missing row ``[m]``, or `NO_SLOT` where no victim is cold enough.

    Slots that a gather since epoch `oldest` reads, or that wait for their row, are no victims.
    `random` uint64 ``[1]`` is the state of a xorshift generator (Marsaglia, 2003; 13, 7, 17).

    Returns:
        Free slots that are left; rows evicted.
    """
    place_of_row, counts, row_of_slot, stamps, free_slots = tables
    capacity = stamps.shape[0]
    evictions = 0
    for index in range(missing.shape[0]):
        if num_free > 0:
            num_free -= 1
            reserved[index] = free_slots[num_free]
            continue
        victim, fewest = NO_SLOT, HIGHEST_COUNT + 1
        for _ in range(SAMPLES):
            state = random[0]
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            random[0] = state
            # 31 random bits scaled to the capacity: cheaper than a remainder
            slot = (np.int64(state >> np.uint64(33)) * capacity) >> 31
            row = row_of_slot[slot]
            if row == NO_ROW or stamps[slot] >= oldest:
                continue
            count = int(counts[row])
            if count < fewest:
                victim, fewest = int(slot), count
        if victim != NO_SLOT and int(counts[missing[index]]) >= fewest + threshold:
            place_of_row[row_of_slot[victim]] = ABSENT
            row_of_slot[victim] = NO_ROW
            evictions += 1
            reserved[index] = victim
        else:
            reserved[index] = NO_SLOT
    return num_free, evictions


def copy_rows(source: Any, places: Any, first_place: int, out: Any) -> None:
    """Copy the rows whose place lies in `source` ``[k, d]``, which begins at `first_place`.

    `out` ``[n, d]`` are words of the same width, or of twice that: a bf16 value is the upper half
    of the same float32 value.
    """
    shift = np.uint32(8 * (out.itemsize - source.itemsize))
    for index in range(places.shape[0]):
        position = places[index] - first_place
        if position >= 0 and position < source.shape[0]:
            for column in range(source.shape[1]):
                out[index, column] = np.uint32(source[position, column]) << shift


def store_rows(rows: Any, reserved: Any, slots: Any) -> None:
    """Copy `rows` ``[m, d]`` into the slots reserved for them."""
    for index in range(reserved.shape[0]):
        slot = reserved[index]
        if slot != NO_SLOT:
            for column in range(rows.shape[1]):
                slots[slot, column] = rows[index, column]
