"""Where packed tables go, and what the reason says."""

import pytest

from engram_core.host_memory import HostMemory
from engram_core.memory_config import MemoryConfig
from engram_core.placement import place_tables

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
