"""plan: shares, needs and verdicts against numbers computed by hand, and what must always hold."""

import json
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engram_core.errors import ConfigError
from engram_core.planner import (
    HostBudget,
    MemoryShape,
    RecordFormat,
    Target,
    ZipfAccess,
    plan,
)

GIB = 2**30
V41 = MemoryShape((384_006_168, 384_016_682), (2, 3, 4), 8, RecordFormat("fp8", 256))
UNIFORM = MemoryShape((400_000, 400_000), (2, 3), 4, RecordFormat("int8", 60))  # 64 bytes a row


def planned(shape=UNIFORM, *, exponent=0.0, tokens_per_s=1000.0, target=None, **hosts):
    asked = target or Target(tokens_per_s)
    return plan(shape, HostBudget(**hosts), asked, ZipfAccess(shape, exponent))


def tier(made, name):
    return next(each for each in made.tiers if each.name == name)


def need(made, name):
    return next(each for each in made.resources if each.name == name)


def test_a_row_is_read_where_it_lies():
    """800,000 rows of 60 values, read alike: an eighth each in two caches behind a quarter.

    Caches before an SSD keep 120 bytes of bf16 and 16 of their own a row, and 5 bytes for every row
    of the table.
    """
    slots = 100_000 * (120 + 16)
    made = planned(
        device_memory=200_000 * 120, dram=5 * 800_000 + slots, extra_memory=slots, ssd_iops=1e6,
        extra_latency_ns=100.0,
    )  # fmt: skip
    assert made.fits
    assert made.is_cached
    assert made.rows_per_token == 16
    expected = {"device": (200_000, 4), "dram": (100_000, 8), "extra": (100_000, 8)}
    for name, (rows, part) in (expected | {"ssd": (800_000, 2)}).items():
        assert tier(made, name).share == pytest.approx(1 / part)
        assert tier(made, name).rows_per_s == pytest.approx(16_000 / part)
        assert tier(made, name).rows == rows
    assert tier(made, "dram").bytes == 4_000_000 + slots
    assert tier(made, "extra").bytes == slots
    assert need(made, "device_bandwidth").needed == pytest.approx(12_000 * 60 * 2)
    assert need(made, "dram_bandwidth").needed == pytest.approx(2000 * 128)
    assert need(made, "ssd_iops").needed == pytest.approx(8000)
    assert need(made, "ssd_bandwidth").needed == pytest.approx(8000 * 4096)
    assert need(made, "network_bandwidth").needed == 0
    # ten reads on their way, 100 ns each: 1e8 lines a second
    assert need(made, "extra_latency_ns").used == pytest.approx(2000 * 2 / 1e8)
    assert (made.bottleneck, made.target_met) == ("ssd_iops", True)
    assert made.attainable_tokens_per_s == pytest.approx(1000 * 1e6 / 8000)


def test_a_table_that_fits_needs_no_cache():
    made = planned(dram=102_400 * 64, extra_memory=700_000 * 64, ssd_iops=1e6)
    assert not made.is_cached
    assert [tier(made, name).rows for name in ("dram", "extra", "ssd")] == [102_400, 697_600, 0]
    assert tier(made, "extra").share == pytest.approx(697_600 / 800_000)


def test_memory_for_less_than_the_caches_map_keeps_nothing():
    made = planned(dram=5 * 800_000, ssd_iops=1e6)
    assert (tier(made, "dram").rows, tier(made, "dram").bytes) == (0, 0)
    assert tier(made, "ssd").share == 1
    assert made.cache_map_bytes == 5 * 800_000


def test_rows_of_other_hosts_cross_the_network():
    made = planned(num_hosts=4, dram=200_000 * 64, network_bandwidth=1e6)
    assert made.fits
    assert made.shard_heads == 1
    assert tier(made, "dram").share == pytest.approx(0.25)
    assert tier(made, "remote").share == pytest.approx(0.75)
    assert tier(made, "remote").rows == 600_000
    # each host answers 16,000 / 4 reads a second, three quarters of them for others
    assert need(made, "dram_bandwidth").needed == pytest.approx(4000 * 64)
    assert need(made, "network_bandwidth").needed == pytest.approx(3000 * (64 + 8))
    assert made.attainable_tokens_per_s == pytest.approx(1e9 / (3000 * 72))


def test_the_largest_shard_decides():
    """Four heads on three hosts: one of them holds and answers for half the rows."""
    made = planned(num_hosts=3, dram=400_000 * 64, network_bandwidth=1e9)
    assert made.shard_heads == 2
    assert made.host_stored_bytes == 400_000 * 64
    assert need(made, "dram_bandwidth").needed == pytest.approx(8000 * 64)
    assert need(made, "network_bandwidth").needed == pytest.approx(16_000 / 2 * 2 / 3 * 72)


def test_deepseek_v41_on_one_host():
    made = planned(V41, exponent=0.9, dram=200 * GIB, tokens_per_s=10_000)
    assert [round(each / GIB, 2) for each in made.layer_bytes] == [94.42, 94.42]
    assert round(made.total_bytes / GIB) == 189
    assert made.records_per_page == 15
    assert made.total_stored_bytes == sum(-(-rows // 15) * 4096 for rows in V41.rows)
    assert tier(made, "dram").share == 1
    assert (made.bottleneck, made.attainable_tokens_per_s, made.target_met) == (None, None, True)


def test_half_a_trillion_parameters_cost_nothing():
    started = time.perf_counter()
    shape = MemoryShape.from_rows_per_head(40_700_000, 2, (2, 3, 4), 8, RecordFormat("fp8", 256))
    made = planned(
        shape, exponent=0.85, num_hosts=8, dram=32 * GIB, device_memory=8 * GIB, ssd_iops=1e6,
        network_bandwidth=5e10, tokens_per_s=100_000,
    )  # fmt: skip
    assert made.parameters > 5e11
    assert made.target_met
    assert time.perf_counter() - started < 2


def test_share_of_the_sparse_parameters():
    target = Target(1, backbone_parameters=671_000_000_000, active_parameters=37_000_000_000)
    made = planned(V41, dram=200 * GIB, target=target)
    assert made.memory_share == V41.parameters / (V41.parameters + 634_000_000_000)
    assert planned(V41, dram=200 * GIB).memory_share is None


def test_rows_without_a_place_are_the_bottleneck():
    made = planned(dram=320_000 * 64)
    assert not made.fits
    assert not made.target_met
    assert (made.bottleneck, made.attainable_tokens_per_s) == ("capacity", 0)
    assert tier(made, "nowhere").rows == 480_000
    assert tier(made, "nowhere").share == pytest.approx(480_000 / 800_000)


def test_device_rows_are_copies_in_bfloat16_unless_it_has_all():
    half = 400_000 * 120
    assert not planned(device_memory=half, dram=400_000 * 64).fits
    assert planned(device_memory=2 * half).fits
    assert tier(planned(device_memory=2 * half), "device").share == 1


def test_records_larger_than_a_page_take_several_reads():
    shape = MemoryShape((10_000,), (2,), 1, RecordFormat("bfloat16", 4096))
    made = planned(shape, ssd_iops=1e6, tokens_per_s=100)
    assert need(made, "ssd_iops").needed == pytest.approx(200)


budgets = st.fixed_dictionaries(
    {
        "num_hosts": st.integers(1, 4),
        "dram": st.integers(0, 10**8),
        "device_memory": st.integers(0, 10**7),
        "extra_memory": st.integers(1, 10**8),
        "extra_bandwidth": st.none() | st.floats(1e3, 1e12),
        "ssd_iops": st.none() | st.just(0) | st.floats(1, 1e7),
        "dram_bandwidth": st.none() | st.floats(1e3, 1e12),
        "network_bandwidth": st.floats(1e3, 1e12),
    }
)
exponents = st.floats(0, 3)


@given(budgets, exponents)
def test_shares_add_up_to_one(hosts, exponent):
    made = planned(exponent=exponent, **hosts)
    assert sum(each.share for each in made.tiers) == pytest.approx(1, abs=1e-12)
    assert all(0 <= each.share <= 1 for each in made.tiers)
    assert sum(each.rows_per_s for each in made.tiers) == pytest.approx(16_000)


@pytest.mark.parametrize("name", ["dram", "device_memory", "extra_memory"])
@given(budgets, exponents, st.integers(1, 10**8))
def test_more_memory_never_raises_what_the_ssd_must_do(name, hosts, exponent, more):
    hosts["ssd_iops"] = 1e5
    before = planned(exponent=exponent, **hosts)
    after = planned(exponent=exponent, **{**hosts, name: hosts[name] + more})
    for border in ("ssd_iops", "ssd_bandwidth", "network_bandwidth"):
        assert need(after, border).needed <= need(before, border).needed * (1 + 1e-9) + 1e-6


@given(budgets, exponents, st.floats(1, 1e9))
def test_the_attainable_rate_is_attainable_and_no_more(hosts, exponent, tokens_per_s):
    made = planned(exponent=exponent, tokens_per_s=tokens_per_s, **hosts)
    assume(made.fits and 0.001 <= (made.attainable_tokens_per_s or 0) <= 1e12)
    again = planned(exponent=exponent, tokens_per_s=made.attainable_tokens_per_s, **hosts)
    assert max(each.used or 0 for each in again.resources) == pytest.approx(1)
    assert made.target_met == (made.attainable_tokens_per_s >= tokens_per_s)


@given(budgets, exponents)
def test_a_plan_is_json(hosts, exponent):
    made = planned(exponent=exponent, **hosts)
    read = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert read["target_met"] == made.target_met
    assert [each["name"] for each in read["tiers"]] == [each.name for each in made.tiers]


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [
        ({"num_hosts": 0}, "num_hosts is 0; accepted: a whole number from 1 to 4096"),
        ({"num_hosts": 5, "network_bandwidth": 1e9}, r"num_hosts is 5; accepted: up to num_heads"),
        ({"num_hosts": 2}, "network_bandwidth is None; accepted: bytes per second above 0 for 2"),
        ({"dram": -1}, "dram is -1; accepted: a whole number from 0"),
        ({"dram": 1.5}, "dram is 1.5; accepted: a whole number from 0"),
        ({"ssd_iops": -1}, "ssd_iops is -1; accepted: a number from 0"),
        ({"ssd_iops": float("nan")}, "ssd_iops is nan; accepted: a number from 0"),
        ({"network_bandwidth": 0}, "network_bandwidth is 0; accepted: a number from 1"),
        ({"ssd_bandwidth": 1e9}, "ssd_iops is None; accepted: a number above 0 where ssd_band"),
        ({"extra_bandwidth": 1e9}, "extra_memory is 0; accepted: bytes above 0 where extra_ban"),
        (
            {"extra_memory": 1, "extra_latency_ns": 0},
            "extra_latency_ns is 0; accepted: a number from 1",
        ),
    ],
)
def test_refused_hosts(hosts, sentence):
    with pytest.raises(ConfigError, match=sentence):
        planned(**hosts)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ((0,), "tokens_per_s is 0; accepted: a number from 0.001 to 1e"),
        ((1, 0), "backbone_parameters is 0; accepted: a whole number from 1"),
        ((1, 10, 11), "active_parameters is 11; accepted: a whole number from 0 to 10"),
        ((1, None, 3), "backbone_parameters is None; accepted: a whole number where active"),
    ],
)
def test_refused_targets(target, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Target(*target)
