"""What tiers count is found wherever they stand in a chain."""

import numpy as np
import torch
from row_servers import LAYER, TABLE, ScriptedSource, tiny_artefact

from engram_core.errors import TierUnreachableError
from engram_core.row_shard import shard_of
from engram_core.stats import MemoryStats, RowServerStats
from engram_core.store.circuit_breaker import CircuitBreaker
from engram_core.store.fallback import ZeroFallbackTier
from engram_core.store.host import HostTier
from engram_core.store.hot_cache import HotCache
from engram_core.store.patient_source import PatientRowSource
from engram_core.store.remote import RemoteTier
from engram_core.store.sharded import ShardedRowSource
from engram_core.store.tier_stats import bytes_by_tier, memory_stats

GONE = TierUnreachableError("gone")


def gather(tier, *row_ids):
    ids = np.array(row_ids, dtype=np.int64)
    tier.gather(ids, torch.empty(len(ids), tier.row_dim, dtype=torch.bfloat16))


def host(rows=50):
    return HostTier(torch.randn(rows, 4).bfloat16())


def test_a_hot_cache_by_layer():
    cache = HotCache(host(), capacity_rows=10)
    gather(cache, 1, 2, 3)
    gather(cache, 1, 2, 4)
    stats = memory_stats({3: cache, 5: host()})
    assert stats.row_servers == {}
    assert list(stats.hot_caches) == [(3, "hot")]
    found = stats.hot_caches[3, "hot"]
    assert (found.hits, found.misses) == (cache.hits, cache.misses) == (2, 4)
    assert (found.admissions, found.evictions, found.resident_rows) == (4, 0, 4)
    assert (found.capacity_rows, found.nbytes) == (10, cache.nbytes)
    assert (found + found).hits == 4


def test_every_tier_occupies_its_own_bytes():
    table = host()
    cache = HotCache(table, capacity_rows=10)
    assert bytes_by_tier(table) == {"host": table.nbytes}
    assert bytes_by_tier(cache) == {"hot": cache.nbytes, "host": table.nbytes}
    assert bytes_by_tier(ZeroFallbackTier(cache)) == bytes_by_tier(cache)
    assert memory_stats({1: table}) == MemoryStats()


def test_a_row_server_that_fails_is_known_by_its_name(tmp_path):
    artefact = tiny_artefact(tmp_path / "memory")
    scripts = [ScriptedSource(shard_of(artefact, [head])) for head in range(2)]
    servers = [
        PatientRowSource(script, retries=1, breaker=CircuitBreaker(4, 1000.0), label=f"host:{port}")
        for port, script in enumerate(scripts)
    ]
    source = ShardedRowSource(servers)
    rows = artefact.layout.rows[LAYER]
    tiers = {
        layer: ZeroFallbackTier(
            HotCache(RemoteTier(source, TABLE, rows, 8, servers=servers), capacity_rows=4)
        )
        for layer in (1, 2)
    }
    everything = range(rows)
    gather(tiers[1], *everything)
    scripts[1].failures = [GONE] * 6
    for _ in range(3):
        gather(tiers[2], *everything)
    stats = memory_stats(tiers)
    assert tiers[2].zeroed_gathers == 3
    assert stats.row_servers["host:0"].failures == 0
    assert not stats.row_servers["host:0"].is_open
    # layers share the servers, which are counted once
    assert stats.row_servers["host:1"] == RowServerStats(
        "host:1", is_open=True, attempts=5, failures=4, retries=2, turned_away=1
    )
    assert len(scripts[1].asked) == 5
    source.close()
