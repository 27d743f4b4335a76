"""What the tiers of a memory counted, collected out of their chains as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping

from engram_core.stats import MemoryStats, RowServerStats
from engram_core.store.base import Tier
from engram_core.store.chain import tier_chain
from engram_core.store.device_cache import DeviceCache
from engram_core.store.hot_cache import HotCache
from engram_core.store.remote import RemoteTier


def memory_stats(tiers: Mapping[int, Tier]) -> MemoryStats:
    """The statistics of all layers' caches of hot rows and of the row servers behind them.

    Args:
        tiers: of each layer, the outermost one.
    """
    hot = {
        (layer, each.name): each.stats()
        for layer, tier in tiers.items()
        for each in tier_chain(tier)
        if isinstance(each, HotCache | DeviceCache)
    }
    sources = {  # layers share them
        id(source): source
        for tier in tiers.values()
        for each in tier_chain(tier)
        if isinstance(each, RemoteTier)
        for source in each.servers
    }
    servers: dict[str, RowServerStats] = {}
    for source in sources.values():
        found = source.stats()
        servers[found.server] = found + servers.get(found.server, RowServerStats(found.server))
    return MemoryStats(hot, servers)


def bytes_by_tier(tier: Tier) -> dict[str, int]:
    """Bytes that each tier of a chain occupies itself, by its name, the outermost first."""
    return {each.name: each.nbytes for each in tier_chain(tier)}
