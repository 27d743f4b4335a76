"""The start-up measurement: what it asks of a tier, and when it stops. No absolute times."""

import threading

import numpy as np
import pytest
import torch

from engram_core.errors import TierError
from engram_core.start_probe import measure_handoff, measure_rows
from engram_core.store.base import TierReport
from engram_core.store.host import HostTier

ROW_DIM = 8


class TimedTier:
    """Rows whose cost is known: a clock that only a gather moves."""

    name, row_dim, nbytes, is_blocking = "timed", ROW_DIM, 0, True

    def __init__(self, num_rows, first_s, again_s=None, call_s=0.0):
        self.num_rows, self.now_s = num_rows, 0.0
        self._first_s, self._again_s = first_s, first_s if again_s is None else again_s
        self._call_s = call_s
        self.met = set()
        self.calls = []

    def clock(self):
        return self.now_s

    def gather(self, row_ids, out):
        self.calls.append(row_ids.copy())
        assert row_ids.min() >= 0
        assert row_ids.max() < self.num_rows
        known = sum(row in self.met for row in row_ids.tolist())
        self.met.update(row_ids.tolist())
        new = row_ids.size - known
        self.now_s += self._call_s + known * self._again_s + new * self._first_s
        out.zero_()
        return TierReport({self.name: row_ids.size})


@pytest.mark.parametrize("num_rows", [1, 2, 16, 17, 100, 844, 100_000, 1_000_000])
def test_each_cost_is_told_from_the_others(num_rows):
    tier = TimedTier(num_rows, first_s=1e-6, again_s=1e-7)
    cost = measure_rows(tier, clock=tier.clock)
    assert 1 <= cost.rows <= min(num_rows, 4096)
    if num_rows > 16:  # of fewer rows all are met before any is counted
        assert cost.first_s == pytest.approx(1e-6)
    assert cost.again_s == pytest.approx(1e-7)
    assert cost.hit_s == 0  # the clock stands still in the cache
    assert cost.miss_extra_s == pytest.approx(0, abs=1e-15)
    assert all(len(set(ids.tolist())) == ids.size for ids in tier.calls)


@pytest.mark.parametrize(
    ("row_s", "call_s", "is_whole"),
    [
        (1e-9, 0, True), (1e-5, 0, True), (1e-3, 0, False), (0.02, 0, False),
        (0, 1e-5, True), (0, 1e-3, False), (0, 0.05, False), (0, 1, False),
    ],
)  # fmt: skip
def test_slow_rows_are_sampled_less_and_within_the_time(row_s, call_s, is_whole):
    tier = TimedTier(10**6, row_s, call_s=call_s)
    cost = measure_rows(tier, limit_s=0.2, clock=tier.clock)
    least_call_s = 16 * row_s + call_s
    assert tier.now_s <= 0.2 + 6 * least_call_s  # those before it counts, and those begun in time
    assert (cost.rows == 4096) == is_whole
    assert cost.rows >= 16


def test_a_tier_that_fails_gives_no_measurement():
    class Failing(TimedTier):
        def gather(self, row_ids, out):
            if len(self.calls) == 3:
                raise TierError("gone")
            return super().gather(row_ids, out)

    tier = Failing(1000, 1e-6)
    assert measure_rows(tier, clock=tier.clock) is None


def test_rows_in_memory_are_measured_by_the_real_clock():
    cost = measure_rows(HostTier(torch.zeros(5000, ROW_DIM, dtype=torch.bfloat16)))
    assert cost.rows > 0
    assert min(cost.first_s, cost.again_s, cost.hit_s) > 0
    assert cost.miss_extra_s >= 0


def test_the_same_seed_samples_the_same_rows():
    calls = []
    for seed in (3, 3, 4):
        tier = TimedTier(10**6, 1e-6)
        measure_rows(tier, clock=tier.clock, seed=seed)
        calls.append(np.concatenate(tier.calls))
    assert np.array_equal(calls[0], calls[1])
    assert not np.array_equal(calls[0], calls[2])


def test_a_hand_off_is_measured_and_leaves_no_thread():
    assert measure_handoff() > 0
    assert measure_handoff(limit_s=-1) > 0
    assert "engram-probe" not in [thread.name for thread in threading.enumerate()]


def test_only_the_rows_that_may_be_read_are():
    tier, among = TimedTier(100_000, first_s=1e-6), np.arange(5, 100_000, 7)
    cost = measure_rows(tier, among=among, clock=tier.clock)
    assert cost.rows > 1000
    assert np.isin(np.concatenate(tier.calls), among).all()
