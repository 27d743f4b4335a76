"""HotCache delivers the inner tier's bits, whatever it holds and whatever breaks."""

import numpy as np
import pytest
import torch
from fakes.counting_tier import CountingTier
from fakes.tiers import FaultyTier
from hypothesis import given
from hypothesis import strategies as st

from engram_core import compiled
from engram_core.errors import ConfigError, IdRangeError, TierError
from engram_core.hot_kernels import copy_rows, store_rows
from engram_core.store.host import HostTier
from engram_core.store.hot_cache import HotCache
from engram_core.store.warm_start import load_hot_list, save_hot_list, warm

NUM_ROWS, DIM = 50, 6
ROWS = torch.randn(NUM_ROWS, DIM, generator=torch.Generator().manual_seed(0))
BITS = torch.tensor([0x7F81, -0x7F, -32768, 1], dtype=torch.int16).view(torch.bfloat16)
BF16 = ROWS.bfloat16()
BF16[3, :4] = BITS  # a signalling NaN, another one, -0.0 and the smallest value


@pytest.fixture(autouse=True, scope="module")
def loaded():
    assert compiled.load()


@pytest.fixture(params=["compiled", "plain"])
def _each_way(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(compiled, "_kernels", None)


def array(*values):
    return np.array(values, dtype=np.int64)


def gathered(tier, row_ids, dtype=torch.bfloat16):
    out = torch.full((len(row_ids), tier.row_dim), 7.0, dtype=dtype)
    report = tier.gather(row_ids, out)
    return out.view(torch.int16 if dtype == torch.bfloat16 else torch.int32), report


def check_whole(cache, inner):
    """Every row reads as it lies in the inner tier, from wherever it comes."""
    for row in range(cache.num_rows):
        assert torch.equal(gathered(cache, array(row))[0], gathered(inner, array(row))[0])


@pytest.mark.usefixtures("_each_way")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("stored", [BF16, ROWS, ROWS.half()], ids=["bf16", "fp32", "fp16"])
def test_bits_are_those_of_the_inner_tier(stored, dtype):
    inner = HostTier(stored)
    cache = HotCache(inner, capacity_rows=9)
    for ids in (array(3, 3, 49, 0), array(0, 3, 17), np.arange(NUM_ROWS), array()):
        assert torch.equal(gathered(cache, ids, dtype)[0], gathered(inner, ids, dtype)[0])


@pytest.mark.parametrize("is_compiled", [True, False])
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, NUM_ROWS - 1), max_size=30), st.booleans()), max_size=15
    ),
    st.integers(1, NUM_ROWS),
)
def test_any_gathers_read_the_table(is_compiled, gathers, capacity):
    inner = FaultyTier(HostTier(BF16))
    cache = HotCache(inner, capacity_rows=capacity)
    table = dict(enumerate(BF16.view(torch.int16)))
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(compiled, "_kernels", None)
        for row_ids, inner.broken in gathers:
            is_kept = set(cache.hot_rows().tolist())
            if inner.broken and not set(row_ids) <= is_kept:
                with pytest.raises(TierError, match="out of reach"):
                    gathered(cache, array(*row_ids))
                continue
            found, report = gathered(cache, array(*row_ids))
            assert all(torch.equal(row, table[i]) for row, i in zip(found, row_ids, strict=True))
            assert sum(report.rows_by_tier.values()) == len(row_ids)
            assert report.rows_by_tier.get("hot", 0) == sum(i in is_kept for i in row_ids)
    assert cache.resident_rows == len(cache.hot_rows()) <= capacity


@pytest.mark.usefixtures("_each_way")
def test_occurrences_are_reported_by_the_tier_that_served_them():
    inner = CountingTier(HostTier(BF16, name="disk"))
    cache = HotCache(inner, capacity_rows=5)
    _, first = gathered(cache, array(4, 4, 2))
    _, second = gathered(cache, array(4, 9, 9, 9, 2))
    assert first.rows_by_tier == {"disk": 3}
    assert second.rows_by_tier == {"disk": 3, "hot": 2}
    assert set(second.duration_by_tier_s) == {"disk", "hot"}
    assert inner.fetches.sum() == 3  # each missing row once
    assert inner.repeated == 0
    assert (cache.hits, cache.misses, cache.hit_rate) == (2, 6, 0.25)
    assert (cache.admissions, cache.evictions, cache.resident_rows) == (3, 0, 3)
    assert gathered(cache, array(4))[1].rows_by_tier == {"hot": 1}


def test_caches_can_be_stacked():
    inner = HotCache(HostTier(BF16), capacity_rows=NUM_ROWS)
    cache = HotCache(inner, capacity_rows=1)
    gathered(inner, np.arange(NUM_ROWS))
    found, report = gathered(cache, array(5, 6, 5))
    assert torch.equal(found, BF16[[5, 6, 5]].view(torch.int16))
    assert report.rows_by_tier == {"hot": 3}


@pytest.mark.parametrize("bad", [-1, NUM_ROWS, 2**40])
def test_a_bad_id_changes_nothing(bad):
    cache = HotCache(HostTier(BF16), capacity_rows=5)
    gathered(cache, array(1))
    out = torch.full((3, DIM), 7.0)
    with pytest.raises(IdRangeError, match=f"row id {bad} is out of range"):
        cache.gather(array(1, 2, bad), out)
    with pytest.raises(IdRangeError):
        warm(cache, array(2, bad))
    assert (out == 7).all()
    assert (cache.hits, cache.misses, cache.hot_rows().tolist()) == (0, 1, [1])


def test_an_output_that_cannot_be_filled_is_refused():
    for out in (torch.empty(2, DIM + 1), torch.empty(2, DIM, dtype=torch.float16)):
        with pytest.raises(ConfigError, match="accepted"):
            HotCache(HostTier(BF16)).gather(array(1, 2), out)


@pytest.mark.usefixtures("_each_way")
@pytest.mark.parametrize("error", [TierError("gone"), OSError("disk"), KeyboardInterrupt()])
def test_a_failed_fetch_leaves_nothing_behind(error):
    inner = FaultyTier(HostTier(BF16), error)
    inner.broken = False
    cache = HotCache(inner, capacity_rows=4)
    gathered(cache, array(0, 1, 2, 3))
    inner.broken = True
    for ids in (array(0, 10, 11, 10), np.arange(NUM_ROWS)):
        with pytest.raises(type(error)):
            gathered(cache, ids)
    assert torch.equal(gathered(cache, array(0))[0], BF16[:1].view(torch.int16))
    inner.broken = False
    check_whole(cache, HostTier(BF16))
    assert cache.resident_rows == 4


def test_ids_in_any_memory_order():
    cache = HotCache(HostTier(BF16))
    ids = np.arange(20)[::2]
    ids.flags.writeable = False
    assert torch.equal(gathered(cache, ids)[0], BF16[:20:2].view(torch.int16))


def test_rows_gathered_in_inference_mode_can_be_read_outside():
    cache = HotCache(HostTier(BF16))
    with torch.inference_mode():
        gathered(cache, array(1, 2))
    assert torch.equal(gathered(cache, array(1, 5))[0], BF16[[1, 5]].view(torch.int16))


def test_sizes():
    inner = CountingTier(HostTier(BF16))
    assert HotCache(inner).capacity_rows == NUM_ROWS // 10
    assert HotCache(HostTier(BF16[:3])).capacity_rows == 1
    for budget in (278, 300, 1000):
        cache = HotCache(inner, budget_bytes=budget)
        assert cache.nbytes <= budget < cache.nbytes + 16 + 2 * DIM
    assert HotCache(inner, budget_bytes=10**6).capacity_rows == NUM_ROWS
    assert (cache.name, cache.num_rows, cache.row_dim) == ("hot", NUM_ROWS, DIM)
    assert cache.is_blocking
    assert not HotCache(HostTier(BF16)).is_blocking


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"budget_bytes": 277}, "budget_bytes is 277; accepted: at least 278"),
        ({"budget_bytes": 1e6}, "budget_bytes is 1000000.0; accepted: a whole number"),
        ({"budget_bytes": 999, "capacity_rows": 2}, "accepted: one of the two"),
        ({"capacity_rows": 0}, "capacity_rows is 0; accepted: 1 to 50"),
        ({"capacity_rows": NUM_ROWS + 1}, "capacity_rows is 51; accepted: 1 to 50"),
    ],
)
def test_sizes_out_of_range_are_refused(sizes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        HotCache(HostTier(BF16), **sizes)


def test_warming_fetches_in_chunks_and_counts_for_nothing():
    rows = torch.randn(20_000, 2).bfloat16()
    inner = CountingTier(HostTier(rows))
    cache = HotCache(inner, capacity_rows=10_000)
    assert warm(cache, np.arange(15_000)) == 10_000
    assert inner.gathers == 3
    assert (cache.hits, cache.misses) == (0, 0)
    assert gathered(cache, np.arange(10_000))[1].rows_by_tier == {"hot": 10_000}
    assert warm(cache, array()) == 10_000


def test_a_saved_list_warms_another_cache(tmp_path):
    path = tmp_path / "hot.safetensors"
    cache = HotCache(HostTier(BF16), capacity_rows=6)
    gathered(cache, array(8, 8, 8, 2, 2, 30))
    save_hot_list(cache, path)
    inner = CountingTier(HostTier(BF16))
    small = HotCache(inner, capacity_rows=2)
    assert load_hot_list(small, path) == 2
    assert small.hot_rows().tolist() == cache.hot_rows()[:2].tolist() == [8, 2]
    assert inner.fetches.sum() == 2
    found, report = gathered(small, array(8, 2))
    assert torch.equal(found, BF16[[8, 2]].view(torch.int16))
    assert report.rows_by_tier == {"hot": 2}


def test_the_plain_copies_equal_numpy():
    source = np.arange(12, dtype=np.uint16).reshape(4, 3) * 5000
    places = np.array([9, 6, 2, 7, 10], dtype=np.int32)  # 6 to 9 lie in the source
    for dtype, shift in ((np.uint16, 0), (np.uint32, 16)):
        out = np.full((5, 3), 1, dtype=dtype)
        copy_rows(source, places, 6, out)
        expected = source[[3, 0, 0, 1, 0]].astype(dtype) << shift
        expected[[2, 4]] = 1
        np.testing.assert_array_equal(out, expected)
    slots = np.zeros((6, 3), dtype=np.uint16)
    store_rows(source, np.array([5, -1, 0, 2], dtype=np.int32), slots)
    np.testing.assert_array_equal(slots[[5, 0, 2]], source[[0, 2, 3]])
    assert not slots[[1, 3, 4]].any()
