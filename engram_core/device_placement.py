"""Puts a cache on the device in front of a memory's tables, or says why not.

What the operator says is done or refused; ``auto`` is decided by a measurement on this device.
"""

from __future__ import annotations

from collections.abc import Mapping

from engram_core.device import Device
from engram_core.device_lane import DeviceLane
from engram_core.device_trial import try_cache
from engram_core.errors import ConfigError
from engram_core.memory_config import MemoryConfig
from engram_core.store.base import Tier
from engram_core.store.device_cache import DeviceCache
from engram_core.store.hot_book import default_capacity
from engram_core.store.row_sample import RowSample
from engram_core.version import MemoryVersion

_VALUE_BYTES = 2
_TRIAL_TOKENS = 32  # a decode step whose rows compute has to wait for
_SAMPLED_TOKENS = 256 * _TRIAL_TOKENS  # whose rows stand for all that can be asked for
_AUTO_SHARE = 0.25  # of the free device memory; keys and values need the rest
_MIB = 2**20


def cache_on_device(version: MemoryVersion, device: Device, config: MemoryConfig) -> MemoryVersion:
    """The memory as `device` reads it: behind caches there, if `config` or a measurement says so.

    Args:
        version: a memory that nobody reads yet; its reference becomes the result's.
        device: where compute runs, the model's weights on it already.
        config: what the operator said.

    Raises:
        ConfigError: a cache is asked for where none can be.
        TierError: rows for the measurement could not be delivered.
    """
    choice = config.device_cache
    if device.shares_host_memory or choice == "off":
        _refuse(choice == "on", device.name, "auto or off there, where rows need no copy")
        return version
    _refuse(
        choice == "on" and config.on_row_failure == "off", "on_row_failure 'off'",
        "auto or off beside it: what stands for a missing row must not be kept",
    )  # fmt: skip
    capacities = _capacities(version.tiers, config.device_cache_bytes)
    is_on, why = _decide(version, device, config, capacities)
    why_tiers = f"{version.why_tiers}; device cache {'on' if is_on else 'off'}: {why}"
    if not is_on:
        return version.behind(version.tiers, why_tiers, lambda: None)
    lane = DeviceLane(device)
    caches = {
        layer: DeviceCache(tier, lane, capacity_rows=capacities[layer])
        for layer, tier in version.tiers.items()
    }

    def close() -> None:
        for cache in caches.values():
            cache.close()

    return version.behind(caches, why_tiers, close)


def _refuse(is_refused: bool, beside: str, accepted: str) -> None:
    if is_refused:
        raise ConfigError(f"device_cache is 'on' with {beside}; accepted: {accepted}")


def _capacities(tiers: Mapping[int, Tier], budget_bytes: int | None) -> dict[int, int]:
    """Rows that each layer's cache keeps; a table's part of the budget goes by its rows."""
    if budget_bytes is None:
        return {layer: default_capacity(tier) for layer, tier in tiers.items()}
    total = sum(tier.num_rows for tier in tiers.values())
    row_bytes = {layer: tier.row_dim * _VALUE_BYTES for layer, tier in tiers.items()}
    least = max(-(-row_bytes[layer] * total // tier.num_rows) for layer, tier in tiers.items())
    if budget_bytes < least:
        raise ConfigError(
            f"device_cache_bytes is {budget_bytes}; accepted: at least {least}, which have room "
            "for a row of every layer"
        )
    return {
        layer: min(tier.num_rows, budget_bytes * tier.num_rows // total // row_bytes[layer])
        for layer, tier in tiers.items()
    }


def _decide(
    version: MemoryVersion, device: Device, config: MemoryConfig, capacities: Mapping[int, int]
) -> tuple[bool, str]:
    """Whether to cache, and why."""
    needed = sum(
        rows * version.tiers[layer].row_dim * _VALUE_BYTES for layer, rows in capacities.items()
    )
    free, _ = device.memory()
    size = f"{needed / _MIB:.1f} MiB on {device.name}"
    if config.device_cache == "on":
        if needed > free:
            raise ConfigError(
                f"device_cache is 'on' and takes {size}, which has {free / _MIB:.1f} MiB free; "
                "accepted: a smaller device_cache_bytes, or off"
            )
        return True, f"as told, {size}"
    if config.on_row_failure == "off":
        return False, "what stands for a missing row must not be kept"
    if version.hit_rule is not None:
        return False, "which tokens contribute is seen on their rows in host memory"
    if needed > free * _AUTO_SHARE:
        return False, f"it would take {size}, which has {free / _MIB:.1f} MiB free"
    trial = try_cache(_trial_tier(version), device, _TRIAL_TOKENS * version.served.num_columns)
    is_faster = trial.cached_s < trial.plain_s
    return is_faster, f"{trial}{f', {size}' if is_faster else ''}"


def _trial_tier(version: MemoryVersion) -> Tier:
    """The first layer's table, without the rows of orders that are not served."""
    layer = version.layer_ids[0]
    tier = version.tiers[layer]
    if not version.served.dropped:
        return tier
    return RowSample(tier, version.hasher.any_rows(layer, _SAMPLED_TOKENS))
