"""Some orders of a memory: no lookup of the others anywhere, and the bits of rows never written."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from artefacts import tiny_compressor, tiny_content
from dropped_orders import (
    HISTORY,
    NEWEST,
    TOKENS,
    equal,
    outputs,
    rows_of,
    zeroed_content,
    zeroed_tier,
)
from fakes.counting_tier import CountingTier
from fakes.tiers import HeldTier
from hypothesis import given
from hypothesis import strategies as st
from memories import NUM_IDS, small_memory

from engram_core.assembly import open_version
from engram_core.config import EngramConfig
from engram_core.cpu_cores import CpuCores
from engram_core.cpu_device import CpuDevice
from engram_core.device_placement import cache_on_device
from engram_core.errors import ConfigError
from engram_core.hashing import NgramHasher
from engram_core.memory_config import MemoryConfig
from engram_core.plain import PlainMemory
from engram_core.prefetch import Prefetcher
from engram_core.served_orders import ServedOrders
from engram_core.simulated import SimulatedDevice
from engram_core.static_step import StaticStep
from engram_core.step import EngramStep, RowSpan
from engram_core.store.device_table import DeviceTable
from engram_core.store.hot_cache import HotCache
from engram_core.store.local_rows import LocalRowSource
from engram_core.store.remote import RemoteTier
from engram_core.store.row_ranges import RowRanges
from engram_core.store.row_source import RowSourceDescription, ServedTable, row_table
from engram_core.store.sharded import ShardedRowSource
from engram_core.tables import open_table, write_artefact
from engram_core.tables.convert import pack_artefact

ORDERS = (2, 3, 4)
SUBSETS = [s for n in (1, 2, 3) for s in combinations(ORDERS, n)]
TWO, ONE = CpuCores(2, "a test"), CpuCores(1, "a test")


def dropped(served):
    return [order for order in ORDERS if order not in served]


def pair(served, wrap=lambda layer, tier: tier, **settings):
    """A memory that serves some orders, and one of all orders whose other rows are zero."""
    whole = small_memory(orders=ORDERS, **settings)

    def zeroed(layer, tier):
        return wrap(layer, zeroed_tier(whole.layout, layer, tier, dropped(served)))

    return (
        small_memory(orders=ORDERS, served=served, wrap=wrap, **settings),
        small_memory(orders=ORDERS, wrap=zeroed if dropped(served) else wrap, **settings),
    )


def on_device(layer, tier):
    rows = torch.empty(tier.num_rows, tier.row_dim, dtype=torch.bfloat16)
    tier.gather(np.arange(tier.num_rows), rows)
    return DeviceTable(rows)


def hot(layer, tier):
    return HotCache(tier, budget_bytes=4000)


def run(memory, device=CpuDevice, cores=TWO, **settings):
    prefetcher = Prefetcher(device(), cores=cores, **settings)
    try:
        return outputs(memory, prefetcher)
    finally:
        prefetcher.close()


@pytest.mark.parametrize("served", SUBSETS)
@pytest.mark.parametrize(
    "wrap", [lambda layer, tier: tier, hot, on_device], ids=["host", "hot", "device"]
)
@pytest.mark.parametrize("device", [CpuDevice, SimulatedDevice])
@pytest.mark.parametrize("settings", [{}, {"inline_max_rows": 0}, {"cores": ONE}])
def test_every_path_equals_a_table_without_these_rows(served, wrap, device, settings):
    memory, zeroed = pair(served, wrap)
    found, stats = run(memory, device, **settings)
    expected, _ = run(zeroed, device, **settings)
    assert equal(found, expected)
    per_order = {"prefill": 2 * len(TOKENS), "decode": 2 * len(NEWEST)}  # two heads
    for each in stats:
        assert each.rows_by_order == dict.fromkeys(served, per_order[each.phase])
        assert each.rows == len(served) * per_order[each.phase]
        assert sum(each.rows_by_tier.values()) == each.rows


@pytest.mark.parametrize("served", [(2, 4), (3,)])
@pytest.mark.parametrize("form", ["v41", "demo"])
@pytest.mark.parametrize("hit_orders", [(), "some"])
def test_forms_and_hit_rules_equal_too(served, form, hit_orders):
    needed = served[:1] if hit_orders else ()
    memory, zeroed = pair(served, form=form, min_hit_orders=needed, num_branches=2)
    assert equal(run(memory)[0], run(zeroed)[0])


@pytest.mark.parametrize("served", [(2, 4), (3,)])
@pytest.mark.parametrize("wrap", [lambda layer, tier: tier, on_device], ids=["host", "device"])
def test_static_steps_for_graphs_equal(served, wrap):
    found = []
    for memory in pair(served, wrap):
        prefetcher = Prefetcher(SimulatedDevice(), cores=ONE)
        static = StaticStep(memory, 4, torch.device("cpu"))
        ticket = prefetcher.submit_step(memory, memory.hasher.step_windows(NEWEST))
        step = EngramStep(memory, [1] * 3, [RowSpan(ticket, i, i + 1) for i in range(3)])
        static.fill(step)
        hidden = torch.randn(4, 1, 8, generator=torch.Generator().manual_seed(2))
        found.append([static.apply(layer, hidden) for layer in memory.layer_ids])
        ticket.release()
        prefetcher.close()
    assert equal(*found)


@pytest.mark.parametrize("served", [(2, 4), (3,)])
def test_sequences_without_memory_and_plain_forwards_equal(served):
    found = []
    for memory in pair(served):
        prefetcher = Prefetcher(CpuDevice(), cores=ONE)
        ticket = prefetcher.submit_step(memory, memory.hasher.step_windows(NEWEST[:1]))
        hidden = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(2))
        mixed = EngramStep(memory, [1, 1], [None, RowSpan(ticket, 0, 1)])
        silent = EngramStep(memory, [2], [None])
        assert silent.embeddings(1).shape == (2, memory.config.memory_dim)
        plain = PlainMemory(memory).step(torch.tensor([[7, 9]]), {})
        found.append([step.apply(1, hidden) for step in (mixed, silent, plain)])
        ticket.release()
        prefetcher.close()
    assert equal(*found)


PLACES = {
    "sparse": ("int4", None, MemoryConfig()),
    "dense": ("float32", None, MemoryConfig()),
    "packed": ("float32", "int8", MemoryConfig(tier="dram")),
    "ssd": ("float32", "float8_e4m3", MemoryConfig(tier="ssd", hot_cache="off")),
    "ssd-hot": ("float32", "int4", MemoryConfig(tier="ssd", hot_cache_bytes=20_000)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("served", [(4, 2), (3,)])
def test_artefacts_in_every_tier_equal(tmp_path, place, served):
    dtype, packed, memory = PLACES[place]
    content = tiny_content(
        storage="sparse" if place == "sparse" else "dense", dtype=dtype,
        orders=ORDERS, rows_per_head=(211,) * 3, head_dim=32,
    )  # fmt: skip
    versions = []
    for name, each in (("whole", content), ("zeroed", zeroed_content(content, dropped(served)))):
        folder = tmp_path / name
        write_artefact(folder, each)
        if packed:
            folder = tmp_path / f"{name}-packed"
            pack_artefact(open_table(tmp_path / name), folder, packed)
        orders = served if name == "whole" else None
        config = replace(memory, orders=orders)
        versions.append(open_version(open_table(folder), tiny_compressor(), config))
    found, stats = run(versions[0])
    assert equal(found, run(versions[1])[0])
    assert versions[0].served.orders == tuple(sorted(served))
    assert {order for each in stats for order in each.rows_by_order} == set(served)


@pytest.mark.parametrize("device", [CpuDevice, SimulatedDevice])
def test_no_tier_is_asked_for_a_dropped_row(device):
    memory = small_memory(orders=ORDERS, served=(2, 4), wrap=lambda _, tier: CountingTier(tier))
    run(memory, device)
    for layer, tier in memory.tiers.items():
        by_order = [tier.fetches[rows_of(memory.layout, layer, [n])].sum() > 0 for n in ORDERS]
        assert by_order == [True, False, True]


@pytest.mark.parametrize("choice", ["auto", "on"])
def test_a_cache_on_the_device_asks_for_no_dropped_row_either(choice):
    memory = small_memory(orders=ORDERS, served=(2, 4), wrap=lambda _, tier: CountingTier(tier))
    config = MemoryConfig(device_cache=choice)
    cached = cache_on_device(memory, SimulatedDevice(), config)
    assert (cached.id, cached.served) == (memory.id, memory.served)
    found, _ = run(cached, SimulatedDevice)
    assert equal(found, run(pair((2, 4))[1], SimulatedDevice)[0])
    for layer, tier in memory.tiers.items():
        assert tier.fetches[rows_of(memory.layout, layer, [3])].sum() == 0


def test_the_ids_travel_to_a_device_table_for_served_orders_alone():
    def sent(served):
        return sum(
            each.transferred_bytes for each in run(pair(served, on_device)[0], SimulatedDevice)[1]
        )

    assert 3 * sent((2,)) == sent(ORDERS)


def test_a_row_server_with_dropped_rows_alone_is_not_asked():
    asked = []

    class Noting(LocalRowSource):
        def read_rows(self, table, row_ids, timeout_s=0.0):
            asked.append(self.orders)
            return super().read_rows(table, row_ids, timeout_s)

    whole = small_memory(orders=ORDERS)

    def source_of(orders):
        tables, tiers = {}, {}
        for layer in whole.layer_ids:
            ids = rows_of(whole.layout, layer, orders)
            ranges = RowRanges([(int(ids[0]), int(ids[-1]) + 1)])
            tier = whole.tiers[layer]
            rows = torch.empty(len(ids), tier.row_dim, dtype=torch.bfloat16)
            tier.gather(ids, rows)
            table = ServedTable(tier.num_rows, tier.row_dim, ranges.bounds)
            tables[row_table(layer)], tiers[row_table(layer)] = table, type(tier)(rows)
        source = Noting(RowSourceDescription("small", tables), tiers)
        source.orders = orders
        return source

    sharded = ShardedRowSource([source_of((2, 3)), source_of((4,))])

    def remote(layer, tier):
        return RemoteTier(sharded, row_table(layer), tier.num_rows, tier.row_dim, timeout_s=20)

    found, _ = run(small_memory(orders=ORDERS, served=(2, 3), wrap=remote))
    assert set(asked) == {(2, 3)}
    assert equal(found, run(pair((2, 3))[1])[0])
    run(small_memory(orders=ORDERS, wrap=remote))
    assert set(asked) == {(2, 3), (4,)}
    sharded.close()


def test_what_is_looked_up_inside_its_layer_follows_the_switch():
    prefetcher = Prefetcher(CpuDevice(), cores=TWO, inline_max_rows=2 * len(NEWEST))
    for served, handed_off in (((2,), False), ((2, 3), True)):
        memory = small_memory(orders=ORDERS, served=served)
        ticket = prefetcher.submit_step(memory, memory.hasher.step_windows(NEWEST))
        assert ticket.handed_off == handed_off
        ticket.release()
    prefetcher.close()


def test_staging_is_reserved_for_served_rows_alone():
    prefetcher = Prefetcher(CpuDevice(), cores=TWO)
    memory = small_memory(orders=ORDERS, served=(2,), wrap=lambda _, tier: HeldTier(tier))
    ticket = prefetcher.submit_prompt(memory, TOKENS)
    assert memory.tiers[1].entered.wait(60)
    assert prefetcher.staging_used_bytes == len(TOKENS) * 2 * (4 * 4 + 8)
    for tier in memory.tiers.values():
        tier.let_go.set()
    rows, _ = ticket.rows(1)
    assert rows.shape == (len(TOKENS), 2 * 4)
    ticket.release()
    prefetcher.close()


def test_rows_for_measurements_are_of_served_orders():
    memory = small_memory(orders=ORDERS, served=(2, 4))
    for layer in memory.layer_ids:
        rows = memory.hasher.any_rows(layer, 100)
        assert np.isin(rows, rows_of(memory.layout, layer, (2, 4))).all()
        assert len(np.unique(rows)) == len(rows) > 100


@given(
    st.lists(st.integers(0, NUM_IDS - 1), min_size=1, max_size=9),
    st.sampled_from(SUBSETS),
    st.sampled_from([(), (0, 1, 0)]),
)
def test_served_columns_are_those_of_the_whole(ids, served, lags):
    whole = small_memory(orders=ORDERS, lags=lags)
    some = NgramHasher(whole.layout, np.arange(NUM_IDS), served)
    columns = np.repeat([order in served for order in ORDERS], 2)
    for layer in whole.layer_ids:
        expected = whole.hasher.row_ids(ids, layer, HISTORY)[:, columns]
        np.testing.assert_array_equal(some.row_ids(ids, layer, HISTORY), expected)


def test_the_id_tells_a_memory_with_fewer_orders_apart():
    ids = [small_memory(orders=ORDERS, served=s).id for s in (None, ORDERS, (2, 3), (3, 4))]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def config(**change):
    told = {"min_hit_orders": (), "lags": (), **change}
    return EngramConfig("v41", (1,), ORDERS, 2, (53,) * 3, 4, 8, **told)


def test_what_is_served_is_said():
    assert ServedOrders.of(config()).why == "2, 3, 4: all that the memory has"
    some = ServedOrders.of(config(), [4, 2])
    assert some.why == "2, 4: as told; rows of 3 read as zeros"
    assert (some.orders, some.dropped, some.num_columns, some.row_width) == ((2, 4), (3,), 4, 16)
    assert (some.reach, ServedOrders.of(config(lags=(2, 0, 0)), [2]).reach) == (4, 4)
    assert ServedOrders.of(config(), [2]).reach == 2


@pytest.mark.parametrize("wanted", [[], [5], [2, 2], [2, 3, 4, 5]])
def test_orders_that_the_memory_lacks_are_refused(wanted):
    with pytest.raises(
        ConfigError, match=r"orders is \[.*accepted: some of the memory's \[2, 3, 4"
    ):
        ServedOrders.of(config(), wanted)


def test_an_order_that_the_hit_rule_needs_is_refused():
    ruled = config(min_hit_orders=(3, 4))
    assert ServedOrders.of(ruled, [3, 4]).dropped == (2,)
    with pytest.raises(ConfigError, match=r"orders is \[2, 3\]; .*\[3, 4\] among them.*hit rule"):
        ServedOrders.of(ruled, [2, 3])


@pytest.mark.parametrize(
    "value", [[], [2, 2], [1], ["2"], [True, 2], 2, "all", {"2": 3}, [2.0]], ids=str
)
def test_values_that_are_no_orders_are_refused(value):
    with pytest.raises(ConfigError, match=r"orders is .*; accepted: .* n-gram orders"):
        MemoryConfig.from_dict({"orders": value})


def test_orders_are_read_from_json():
    assert MemoryConfig.from_dict({"orders": [3, 2]}).orders == (3, 2)
    assert MemoryConfig.from_dict({}).orders is None


def test_an_artefact_without_the_orders_is_refused_before_it_is_read(tmp_path):
    write_artefact(tmp_path / "a", tiny_content())
    with pytest.raises(ConfigError, match=r"orders is \[2, 4\]; accepted: .*\[2, 3\]"):
        open_version(open_table(tmp_path / "a"), tiny_compressor(), MemoryConfig(orders=(2, 4)))
