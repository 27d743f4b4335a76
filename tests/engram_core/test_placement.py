"""Where packed tables go, and what the reason says."""

import pytest
from artefacts import tiny_compressor, tiny_content

from engram_core import assembly
from engram_core.errors import ConfigError
from engram_core.host_memory import HostMemory
from engram_core.memory_config import MemoryConfig
from engram_core.placement import Placement, place_remotely, place_tables, with_cost
from engram_core.row_cost import RowCost
from engram_core.tables import open_table, write_artefact
from engram_core.tables.convert import pack_artefact

GIB = 2**30


@pytest.mark.parametrize(
    ("table_gib", "choice", "tier"),
    [(1, "auto", "dram"), (7, "auto", "ssd"), (1, "ssd", "ssd"), (7, "dram", "dram")],
)
def test_tables_lie_where_they_fit_or_as_told(table_gib, choice, tier):
    placed = place_tables(
        table_gib * GIB, MemoryConfig(tier=choice), HostMemory(10 * GIB, "cgroup limit")
    )
    assert placed.tier == tier
    assert placed.why.startswith(tier)
    assert f"{table_gib}.00 GiB and 10.00 GiB are free (cgroup limit)" in placed.why
    assert ("as told" in placed.why) == (choice != "auto")
    assert placed.hot_cache == (tier == "ssd")


@pytest.mark.parametrize(("said", "tier", "cached"), [("on", "dram", True), ("off", "ssd", False)])
def test_a_hot_cache_stands_where_told(said, tier, cached):
    config = MemoryConfig(tier=tier, hot_cache=said)
    placed = place_tables(GIB, config, HostMemory(10 * GIB, "host"))
    assert placed.hot_cache == cached
    assert placed.why.endswith(f"hot cache {said}: as told")


FREE = HostMemory(10 * GIB, "cgroup limit")
REMOTE = {"tier": "remote", "row_servers": ("127.0.0.1:1",)}


def test_told_to_lie_in_memory_that_is_not_there():
    with pytest.raises(ConfigError) as caught:
        place_tables(11 * GIB, MemoryConfig(tier="dram"), FREE)
    assert str(caught.value) == (
        "tier is 'dram', but the tables take 11.00 GiB and 10.00 GiB are free (cgroup limit); "
        "accepted: ssd, or auto, which takes it"
    )
    assert place_tables(11 * GIB, MemoryConfig(), FREE).tier == "ssd"
    assert place_tables(10 * GIB, MemoryConfig(tier="dram"), FREE).tier == "dram"


@pytest.mark.parametrize(
    ("tier", "hot_gib", "left_gib"), [("ssd", 11, 10), ("dram", 4, 3), ("auto", 6, 5)]
)
def test_a_hot_cache_must_fit_beside_the_tables(tier, hot_gib, left_gib):
    tables = {"dram": 7, "auto": 5}.get(tier, 20) * GIB
    config = {"tier": tier, "hot_cache": "on"}
    with pytest.raises(ConfigError) as caught:
        place_tables(tables, MemoryConfig(**config, hot_cache_bytes=hot_gib * GIB), FREE)
    text = str(caught.value)
    assert f"hot_cache_bytes is {hot_gib * GIB} ({hot_gib}.00 GiB), but 10.00 GiB are free" in text
    assert "(cgroup limit)" in text
    assert f"accepted: up to {left_gib * GIB} bytes" in text
    assert ("of which the tables take" in text) == (tier != "ssd")
    place_tables(tables, MemoryConfig(**config, hot_cache_bytes=left_gib * GIB), FREE)
    off = {**config, "hot_cache": "off"}
    place_tables(tables, MemoryConfig(**off, hot_cache_bytes=hot_gib * GIB), FREE)


def test_a_hot_cache_of_remote_rows_must_fit_as_well():
    with pytest.raises(ConfigError, match=r"hot_cache_bytes.*10\.00 GiB are free \(cgroup limit\)"):
        place_remotely(MemoryConfig(**REMOTE, hot_cache_bytes=11 * GIB), FREE)
    assert place_remotely(MemoryConfig(**REMOTE, hot_cache_bytes=GIB), FREE).hot_cache


def test_a_memory_is_refused_before_its_tables_are_read(tmp_path, monkeypatch):
    write_artefact(tmp_path / "a", tiny_content())
    pack_artefact(open_table(tmp_path / "a"), tmp_path / "b", "int8")
    monkeypatch.setattr(assembly, "free_host_memory", lambda: HostMemory(4096, "host"))
    artefact = open_table(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"tier is 'dram'.*\(host\); accepted: ssd"):
        assembly.open_version(artefact, tiny_compressor(), MemoryConfig(tier="dram"))
    assert assembly.open_version(artefact, tiny_compressor()).why_tiers.startswith("ssd: ")


def cost(first_us, *, again_us=1.0, hit_us=0.2, extra_us=0.5):
    return RowCost(4096, first_us * 1e-6, again_us * 1e-6, hit_us * 1e-6, extra_us * 1e-6)


def placed_on(tier, **config):
    if tier == "remote":
        return MemoryConfig(tier=tier, row_servers=("a:1", "b:2"), **config)
    return MemoryConfig(tier=tier, **config)


def place(config):
    if config.tier == "remote":
        return place_remotely(config, FREE)
    return place_tables(GIB, config, FREE)


@pytest.mark.parametrize("tier", ["ssd", "remote"])
@pytest.mark.parametrize(
    ("measured", "cached", "why"),
    [
        (cost(95.0), True, "on: a tenth of the rows; a hit takes 0.2 us, a miss 0.5 us more"),
        (cost(1.0), True, "on: a tenth of the rows; a hit takes 0.2 us, a miss 0.5 us more"),
        # 0.4 x 0.2 + 0.6 x (0.9 + 0.5) is more than 0.9
        (cost(0.9), False, "off: a hit takes 0.2 us, a miss 0.5 us more than a row, which does"),
        (cost(1.0, hit_us=1.0), False, "off: a hit takes 1 us, a miss 0.5 us more than a row"),
        (None, True, "on: a tenth of the rows"),
    ],
)
def test_a_cache_stands_where_its_hits_pay(tier, measured, cached, why):
    config = placed_on(tier)
    placed = with_cost(place(config), config, measured)
    assert (placed.tier, placed.hot_cache) == (tier, cached)
    assert f"hot cache {why}" in placed.why
    assert ("4096 random rows took" in placed.why) == (measured is not None)


@pytest.mark.parametrize("tier", ["ssd", "remote", "dram"])
@pytest.mark.parametrize("said", ["on", "off"])
@pytest.mark.parametrize("measured", [cost(95.0), cost(0.1), None])
def test_the_measurement_overrules_nobody(tier, said, measured):
    config = placed_on(tier, hot_cache=said)
    placed = with_cost(place(config), config, measured)
    assert placed.hot_cache == (said == "on")
    assert placed.why.endswith(f"hot cache {said}: as told")


def test_rows_in_memory_are_not_cached_and_their_cost_is_shown():
    config = MemoryConfig()
    placed = with_cost(place(config), config, cost(0.5, again_us=0.25, hit_us=0.1))
    assert not placed.hot_cache
    assert placed.why.endswith(
        "; 4096 random rows took 0.5 us each (2,000,000 rows/s) and 0.25 us again; "
        "hot cache off: the rows are in memory already, a hit would take 0.1 us"
    )


def test_rows_without_a_choice_show_their_cost_alone():
    placed = with_cost(Placement("dram", "always in memory"), MemoryConfig(), cost(0.0))
    assert placed.why == (
        "dram: always in memory; 4096 random rows took 0 us each (countless rows/s) and 1 us again"
    )


def test_the_budget_of_a_cache_is_named():
    config = MemoryConfig(tier="ssd", hot_cache_bytes=12345)
    assert "hot cache on: 12345 bytes; a hit" in with_cost(place(config), config, cost(9.0)).why
