"""DeviceCache delivers the inner tier's bits to a device, whatever it holds and whatever breaks."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from fakes.counting_tier import CountingTier
from fakes.tiers import FaultyTier, HeldTier
from hypothesis import given, settings
from hypothesis import strategies as st

from engram_core import compiled
from engram_core.device_lane import DeviceLane
from engram_core.errors import ConfigError, IdRangeError, StateError, TierError
from engram_core.simulated import SimulatedDevice
from engram_core.staging import RowLanding
from engram_core.store.device_cache import DeviceCache
from engram_core.store.host import HostTier
from engram_core.store.warm_start import warm

NUM_ROWS, DIM = 400, 6
ROWS = torch.randn(NUM_ROWS, DIM, generator=torch.Generator().manual_seed(0)).bfloat16()
ROWS[3, :4] = torch.tensor([0x7F81, -0x7F, -32768, 1], dtype=torch.int16).view(torch.bfloat16)
NEVER_S = 3600.0


@pytest.fixture(autouse=True, scope="module")
def loaded():
    assert compiled.load()


def array(*values):
    return np.array(values, dtype=np.int64)


def make(inner=None, latency_s=0.0, **options):
    lane = DeviceLane(SimulatedDevice(latency_s))
    return DeviceCache(inner or HostTier(ROWS), lane, **options)


def landed(cache, row_ids):
    rows, event, report = cache.land(row_ids)
    event.wait()
    assert sum(report.rows_by_tier.values()) == len(row_ids)
    return torch.Tensor(rows.view(torch.int16)), report


def check(cache, row_ids):
    """The rows are the table's, bit for bit."""
    found, report = landed(cache, row_ids)
    assert torch.equal(found, ROWS[torch.from_numpy(row_ids)].view(torch.int16))
    return report


def zipf(generator, skew, size):
    return generator.zipf(skew, size) * 7919 % NUM_ROWS


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, NUM_ROWS - 1), max_size=30), st.booleans()), max_size=15
    ),
    st.integers(1, NUM_ROWS),
)
def test_any_lookups_read_the_table(lookups, capacity):
    inner = FaultyTier(HostTier(ROWS))
    cache = make(inner, capacity_rows=capacity)
    for row_ids, inner.broken in lookups:
        is_kept = set(cache.hot_rows().tolist())
        before = cache.hits + cache.misses
        if inner.broken and not set(row_ids) <= is_kept:
            with pytest.raises(TierError, match="out of reach"):
                cache.land(array(*row_ids))
            assert cache.hits + cache.misses == before
            continue
        report = check(cache, array(*row_ids))
        hits = sum(row in is_kept for row in row_ids)
        assert report.rows_by_tier.get("device", 0) == hits
        assert cache.hits + cache.misses == before + len(row_ids)
    hot = cache.hot_rows()
    assert len(hot) == cache.resident_rows == cache.admissions - cache.evictions <= capacity
    inner.broken = True  # what is published is really there
    if hot.size:
        assert set(check(cache, hot).rows_by_tier) == {"device"}


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    capacity=st.sampled_from([1, 7, 40, NUM_ROWS]),
    latency_s=st.sampled_from([0.0, 0.0003]),
    break_every=st.sampled_from([0, 7]),
)
def test_threads_get_the_tables_rows(seed, capacity, latency_s, break_every):
    inner = CountingTier(HostTier(ROWS), delay_s=0.0003, break_every=break_every)
    cache = make(inner, latency_s, capacity_rows=capacity)

    def work(thread):
        generator, delivered, failures = np.random.default_rng([seed, thread]), 0, 0
        for _ in range(12):
            row_ids = zipf(generator, 1.2, int(generator.integers(1, 120)))
            try:
                check(cache, row_ids)
                delivered += len(row_ids)
            except TierError:
                failures += 1
        return delivered, failures

    with ThreadPoolExecutor(6) as pool:
        delivered, failures = np.sum(list(pool.map(work, range(6))), axis=0)
    assert failures == inner.broken  # each broken fetch was one lookup's own
    assert cache.hits + cache.misses == delivered
    assert (inner.doubled, inner.repeated) == (0, 0)
    inner.break_every = 0
    gathers = inner.gathers
    assert set(check(cache, cache.hot_rows()).rows_by_tier) == {"device"}
    assert inner.gathers == gathers
    check(cache, np.arange(NUM_ROWS))


def test_slots_in_flight_are_never_evicted():
    cache = make(latency_s=NEVER_S, capacity_rows=2)
    cache.land(array(1, 2))
    cache.land(array(1, 2))  # the device never gets this far
    assert sorted(cache.hot_rows()) == [1, 2]
    for _ in range(50):
        cache.land(array(7, 8, 7, 8))  # by far hotter
    assert sorted(cache.hot_rows()) == [1, 2]
    assert cache.evictions == 0


def test_slots_that_the_device_has_read_may_be_evicted():
    cache = make(latency_s=0.0, capacity_rows=2)
    for row_ids in (array(1, 2), array(1, 2), *[array(7, 8)] * 5):
        check(cache, row_ids)
    assert sorted(cache.hot_rows()) == [7, 8]
    assert (cache.admissions, cache.evictions) == (4, 2)


def test_hits_and_bytes_are_counted():
    cache = make(capacity_rows=4)
    first = check(cache, array(1, 2, 1))
    second = check(cache, array(2, 1, 1, 9))
    assert first.rows_by_tier == {"host": 3}
    assert second.rows_by_tier == {"device": 3, "host": 1}
    assert (cache.hits, cache.misses, cache.hit_rate) == (3, 4, 3 / 7)
    # a place each, one fetched row with its place, source and slot
    assert second.transferred_bytes == 4 * 8 + DIM * 2 + 2 * 8 + 2 * 8
    third = check(cache, array(1, 1))
    assert third.transferred_bytes == 2 * 8


def test_a_broken_fetch_leaves_nothing_behind():
    inner = FaultyTier(HostTier(ROWS))
    inner.broken = False
    cache = make(inner, capacity_rows=3)
    check(cache, array(1, 2, 3))
    inner.broken = True
    with pytest.raises(TierError, match="out of reach"):
        cache.land(array(1, 8, 9))
    inner.broken = False
    assert set(cache.hot_rows()) <= {1, 2, 3}
    for _ in range(4):
        check(cache, array(8, 9, 1, 2))
    assert cache.resident_rows == 3


def test_rows_that_others_fetch_are_read_where_they_land():
    held = HeldTier(HostTier(ROWS))
    cache = make(held, 0.0003, capacity_rows=2)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(check, cache, array(1, 2, 5, 1))
        assert held.entered.wait(60)
        second = pool.submit(check, cache, array(5, 2, 2))
        while cache._policy._epoch < 2:
            threading.Event().wait(0.001)
        assert not second.done()
        held.let_go.set()
        assert first.result(60).rows_by_tier == {"host": 4}
        report = second.result(60)
    assert held.gathers == 1
    assert report.rows_by_tier == {"host": 3}
    assert report.transferred_bytes == 3 * 2 * 8  # indices, and no row


def test_a_landing_takes_them_in_the_dtype_of_compute():
    device = SimulatedDevice(0.0003)
    landing = RowLanding(device, torch.float32)
    cache = DeviceCache(HostTier(ROWS), DeviceLane(device), capacity_rows=9)
    row_ids = array(5, 399, 5, 17)
    for _ in range(2):
        rows = landing.take(landing.gather(cache, row_ids))
        assert torch.equal(torch.Tensor(rows), ROWS[row_ids].float())


def test_host_memory_is_read_from_the_inner_tier():
    cache = make(capacity_rows=4)
    out = torch.empty(2, DIM)
    assert cache.gather(array(4, 5), out).rows_by_tier == {"host": 2}
    assert torch.equal(out, ROWS[4:6].float())


def test_closing_frees_the_device_memory():
    cache = make(capacity_rows=4)
    check(cache, array(1, 2))
    slots = weakref.ref(cache._slots)
    assert cache.nbytes == 4 * DIM * 2
    cache.close()
    cache.close()
    gc.collect()
    assert slots() is None
    assert cache.nbytes == 0
    with pytest.raises(StateError, match="closed"):
        cache.land(array(1))


def test_budgets_bound_the_slots():
    assert make().capacity_rows == NUM_ROWS // 10
    assert make(budget_bytes=5 * DIM * 2 + 1).capacity_rows == 5
    assert make(budget_bytes=2**40).capacity_rows == NUM_ROWS
    for bad in (DIM * 2 - 1, True, 1.5, "1"):
        with pytest.raises(ConfigError, match=r"budget_bytes is .*; accepted: "):
            make(budget_bytes=bad)
    with pytest.raises(ConfigError, match="one of the two"):
        make(budget_bytes=100, capacity_rows=1)
    with pytest.raises(ConfigError, match="capacity_rows is 0"):
        make(capacity_rows=0)


def test_bad_ids_are_refused_before_anything_happens():
    cache = make(capacity_rows=4)
    for bad in (-1, NUM_ROWS):
        with pytest.raises(IdRangeError, match="accepted: 0 to 399"):
            cache.land(array(1, bad))
    assert (cache.misses, cache.resident_rows) == (0, 0)


def test_a_warmed_cache_hits_from_the_first_lookup_on():
    inner = CountingTier(HostTier(ROWS))
    cache = make(inner, latency_s=0.001, capacity_rows=50)
    assert warm(cache, np.arange(100, 200)) == 50
    assert inner.fetches.sum() == 50
    assert (cache.hits, cache.misses) == (0, 0)
    assert check(cache, np.arange(100, 150)).rows_by_tier == {"device": 50}
