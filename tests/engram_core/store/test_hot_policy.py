"""The policy equals a plain model with dictionaries, compiled or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core import compiled
from engram_core.errors import ConfigError
from engram_core.store.hot_policy import HotPolicy

NUM_ROWS = 40


class Model:
    """Aged sampled LFU, one row at a time."""

    def __init__(self, capacity, threshold, seed):
        self.capacity, self.threshold = capacity, threshold
        self.state = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64
        self.counts, self.slot_of_row, self.row_of_slot = [0] * NUM_ROWS, {}, {}
        self.free = list(reversed(range(capacity)))
        self.swept, self.rest = 0, 0

    def gather(self, row_ids, arrives):
        self.age(len(row_ids))
        for row in row_ids:
            self.counts[row] = min(255, self.counts[row] + 1)
        used = {self.slot_of_row[row] for row in row_ids if row in self.slot_of_row}
        hits = sum(row in self.slot_of_row for row in row_ids)
        missing = list(dict.fromkeys(row for row in row_ids if row not in self.slot_of_row))
        found = {row: self.find_slot(row, used) for row in missing}
        for row, slot in found.items():
            if slot is not None and arrives:
                self.slot_of_row[row], self.row_of_slot[slot] = slot, row
            elif slot is not None:
                self.free.append(slot)
        return hits, missing

    def find_slot(self, row, used):
        if self.free:
            return self.free.pop()
        sampled = [self.draw() for _ in range(8)]
        usable = [s for s in sampled if s in self.row_of_slot and s not in used]
        if not usable:
            return None
        victim = min(usable, key=lambda slot: self.counts[self.row_of_slot[slot]])
        coldest = self.row_of_slot[victim]
        if self.counts[row] < self.counts[coldest] + self.threshold:
            return None
        del self.row_of_slot[victim], self.slot_of_row[coldest]
        return victim

    def draw(self):
        self.state ^= self.state << 13 & 2**64 - 1
        self.state ^= self.state >> 7
        self.state ^= self.state << 17 & 2**64 - 1
        return (self.state >> 33) * self.capacity >> 31

    def age(self, lookups):
        steps, self.rest = divmod(self.rest + lookups * NUM_ROWS, 4 * self.capacity)
        for _ in range(steps):
            self.counts[self.swept] //= 2
            self.swept = (self.swept + 1) % NUM_ROWS


rows = st.lists(st.integers(0, NUM_ROWS - 1), max_size=40)


@pytest.mark.parametrize("is_compiled", [True, False])
@given(
    st.lists(st.tuples(rows, st.booleans()), max_size=25),
    st.integers(1, NUM_ROWS),
    st.integers(0, 3),
    st.integers(0, 2**63 - 1),
)
def test_it_keeps_what_the_model_keeps(is_compiled, gathers, capacity, threshold, seed):
    assert compiled.load()
    policy = HotPolicy(NUM_ROWS, capacity, admission_threshold=threshold, seed=seed)
    model = Model(capacity, threshold, seed)
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(compiled, "_kernels", None)
        for row_ids, arrives in gathers:
            plan = policy.plan(np.array(row_ids, dtype=np.int64), capacity)
            policy.end_reading(plan)
            (policy.publish if arrives else policy.withdraw)(plan)
            hits, missing = model.gather(row_ids, arrives)
            assert (plan.num_hits, plan.missing.tolist(), plan.num_waits) == (hits, missing, 0)
            resident, counts = policy.hottest()
            assert set(resident.tolist()) == set(model.slot_of_row)
            assert counts.tolist() == [model.counts[row] for row in resident]
            assert policy.num_resident == len(resident)


def plan(policy, *row_ids, **options):
    return policy.plan(np.array(row_ids, dtype=np.int64), policy.capacity, **options)


def test_occurrences_are_counted_before_they_are_merged():
    policy = HotPolicy(10, 2)
    policy.publish(plan(policy, 7, 3, 7, 7))
    assert [each.tolist() for each in policy.hottest()] == [[7, 3], [3, 1]]
    plan(policy, 3, is_lookup=False)
    assert policy.hottest()[1].tolist() == [3, 1]


def test_a_counter_stays_at_its_highest():
    policy = HotPolicy(1000, 1000)  # so large that nothing fades meanwhile
    policy.publish(policy.plan(np.full(400, 999, dtype=np.int64), 1000))
    assert policy.hottest()[1].tolist() == [255]


def test_counters_are_halved_once_in_four_capacities_of_lookups():
    policy = HotPolicy(10, 2, admission_threshold=255)
    policy.raise_counts(np.arange(10), np.full(10, 100, dtype=np.uint8))
    policy.publish(plan(policy, 0, 9))
    # so far 2 of 8 lookups swept 2 of 10 rows; row 0 was among them, and counted afterwards
    assert [each.tolist() for each in policy.hottest()] == [[9, 0], [101, 51]]
    for _ in range(6):
        plan(policy, 5)
    assert [each.tolist() for each in policy.hottest()] == [[0, 9], [51, 50]]


def test_slots_that_are_being_read_are_no_victims():
    policy = HotPolicy(10, 2)
    policy.publish(plan(policy, 1, 2))
    reading = plan(policy, 1, 2)
    other = plan(policy, 3, 3, 3, 3)
    assert other.reserved.tolist() == [-1]
    policy.withdraw(other)
    policy.end_reading(reading)
    assert plan(policy, 3, 3).reserved.tolist() == [-1]  # `other` is still reading
    policy.end_reading(other)


def test_a_threshold_keeps_rows_that_are_hardly_hotter_out():
    for threshold, is_admitted in ((0, True), (1, False)):
        policy = HotPolicy(10, 1, admission_threshold=threshold)
        first = plan(policy, 1)
        policy.publish(first)
        policy.end_reading(first)
        assert bool(plan(policy, 2).reserved[0] >= 0) == is_admitted


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"num_rows": 2**31}, "num_rows"),
        ({"capacity": 0}, "capacity_rows"),
        ({"capacity": 11}, "capacity_rows"),
        ({"admission_threshold": -1}, "admission_threshold"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, field):
    with pytest.raises(ConfigError, match=f"{field} is .*; accepted: "):
        HotPolicy(**{"num_rows": 10, "capacity": 2, **arguments})
