"""Many gathers at once: no row fetched twice at a time, no wrong row, nothing left behind."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from fakes.counting_tier import CountingTier
from fakes.tiers import HeldTier, WrappedTier
from hypothesis import given, settings
from hypothesis import strategies as st

from engram_core import compiled
from engram_core.errors import TierError
from engram_core.store.host import HostTier
from engram_core.store.hot_cache import HotCache

NUM_ROWS = 3000
ROWS = torch.randn(NUM_ROWS, 8, generator=torch.Generator().manual_seed(0)).bfloat16()


@pytest.fixture(autouse=True, scope="module")
def loaded():
    assert compiled.load()


def assert_rows(tier, row_ids, table=ROWS, dtype=torch.bfloat16):
    out = torch.full((len(row_ids), tier.row_dim), 7.0, dtype=dtype)
    report = tier.gather(row_ids, out)
    assert torch.equal(out, table[torch.from_numpy(row_ids)].to(dtype))
    assert sum(report.rows_by_tier.values()) == len(row_ids)
    return report


def assert_settled(cache, inner, table=ROWS):
    """Nothing is under way, and what lies in slots is right."""
    assert not inner.under_way.any()
    hot = cache.hot_rows()
    assert len(np.unique(hot)) == len(hot) == cache.resident_rows <= cache.capacity_rows
    gathers = inner.gathers
    assert set(assert_rows(cache, hot, table).rows_by_tier) <= {"hot"}
    assert inner.gathers == gathers
    for start in range(0, cache.num_rows, 4096):
        assert_rows(cache, np.arange(start, min(start + 4096, cache.num_rows)), table)


def zipf(generator, skew, size, num_rows):
    """Skewed ids, the hot ones strewn over the table."""
    return generator.zipf(skew, size) * 7919 % num_rows


class HeldThenBroken(HeldTier):
    """Breaks the first gather, once it is let go."""

    def gather(self, row_ids, out):
        is_first = not self.entered.is_set()
        self.entered.set()
        assert self.let_go.wait(60)
        if is_first:
            raise TierError("the rows are out of reach")
        return WrappedTier.gather(self, row_ids, out)


class Fetching:
    """A cache of four rows, and a thread that is fetching rows 1 and 2 until it is let go."""

    def __init__(self, held):
        self.cache, self.held, self.pool = (
            HotCache(held, capacity_rows=4),
            held,
            ThreadPoolExecutor(),
        )
        self.first = self.start(1, 2, 1)
        assert held.entered.wait(60)

    def start(self, *row_ids, **options):
        return self.pool.submit(assert_rows, self.cache, np.array(row_ids), **options)

    def until_planned(self, misses):
        """Until so many more gathers wait: each plans before it waits."""
        waited = threading.Event()
        while self.cache._policy._epoch < misses:
            waited.wait(0.001)


@pytest.fixture
def fetching(request):
    fetching = Fetching(getattr(request, "param", HeldTier)(HostTier(ROWS)))
    yield fetching
    fetching.held.let_go.set()
    fetching.pool.shutdown()


def test_rows_on_their_way_are_waited_for(fetching):
    second = fetching.start(2, 2, 1)
    wide = fetching.start(2, dtype=torch.float32)
    fetching.until_planned(3)
    assert not second.done()
    fetching.held.let_go.set()
    assert second.result(60).rows_by_tier == {"host": 3}
    assert {"host", "hot"} == set(wide.result(60).duration_by_tier_s)
    assert fetching.first.result(60).rows_by_tier == {"host": 3}
    assert fetching.held.gathers == 1


@pytest.mark.parametrize("fetching", [HeldThenBroken], indirect=True)
def test_whoever_waited_for_a_failed_fetch_fetches_itself(fetching):
    others = [fetching.start(2, 7, 1, 2), fetching.start(1, 2)]
    fetching.until_planned(3)
    fetching.held.let_go.set()
    with pytest.raises(TierError, match="out of reach"):
        fetching.first.result(60)
    reports = [each.result(60).rows_by_tier for each in others]
    assert sum(sum(report.values()) for report in reports) == 6
    assert fetching.cache.hot_rows().tolist() == [1, 2, 7]
    assert fetching.cache.resident_rows == 3


def test_hits_do_not_wait_for_others_fetches():
    held = HeldTier(HostTier(ROWS))
    held.let_go.set()
    cache = HotCache(held, capacity_rows=1000)
    assert_rows(cache, np.array([5, 6]))
    held.let_go.clear()
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(assert_rows, cache, np.arange(10, 30))
        while cache._policy._epoch < 2:
            threading.Event().wait(0.001)
        assert assert_rows(cache, np.array([6])).rows_by_tier == {"hot": 1}
        assert not slow.done()
        held.let_go.set()
        assert slow.result(60).rows_by_tier == {"host": 20}


@pytest.mark.parametrize("capacity", [1, 30, 1000])
@pytest.mark.parametrize("break_every", [0, 7])
def test_threads_never_fetch_a_row_twice_at_a_time(capacity, break_every):
    inner = CountingTier(HostTier(ROWS), delay_s=0.001, break_every=break_every)
    cache = HotCache(inner, capacity_rows=capacity)

    def work(seed):
        generator, failures = np.random.default_rng(seed), 0
        for _ in range(40):
            row_ids = zipf(generator, 1.2, int(generator.integers(0, 200)), NUM_ROWS)
            try:
                assert_rows(cache, row_ids)
            except TierError:
                failures += 1
        return failures

    with ThreadPoolExecutor(8) as pool:
        failures = sum(pool.map(work, range(8)))
    assert failures == inner.broken  # each broken fetch was one gather's own
    assert (inner.doubled, inner.repeated) == (0, 0)
    inner.break_every = 0
    assert_settled(cache, inner)


LOOKUPS, BATCH, THREADS, EXAMPLES = 2_200_000, 4096, 4, 12


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 2**32),
    skew=st.floats(1.05, 1.6),
    share=st.sampled_from([0.001, 0.02, 0.1, 0.5]),
    break_every=st.sampled_from([0, 50]),
)
def test_millions_of_lookups_in_concurrent_batches(seed, skew, share, break_every):
    """More than ten million in all examples together."""
    assert EXAMPLES * LOOKUPS > 10_000_000
    num_rows = 100_003
    table = torch.arange(num_rows * 4, dtype=torch.int32).to(torch.int16).view(num_rows, 4)
    table = (table & 0x7F7F).view(torch.bfloat16)  # finite, so that equal bits are equal values
    inner = CountingTier(HostTier(table), delay_s=0.0005, break_every=break_every)
    cache = HotCache(inner, capacity_rows=int(num_rows * share), seed=seed)

    def work(thread):
        generator, delivered = np.random.default_rng([seed, thread]), 0
        while delivered < LOOKUPS // THREADS:
            row_ids = zipf(generator, skew, int(generator.integers(1, 2 * BATCH)), num_rows)
            try:
                assert_rows(cache, row_ids, table)
                delivered += len(row_ids)
            except TierError:
                assert break_every
        return delivered

    with ThreadPoolExecutor(THREADS) as pool:
        delivered = sum(pool.map(work, range(THREADS)))
    assert cache.hits + cache.misses == delivered >= LOOKUPS
    assert (inner.doubled, inner.repeated) == (0, 0)
    inner.break_every = 0
    assert_settled(cache, inner, table)
