"""Whether a memory gets caches on its device, what the reason says, and how they are freed."""

import numpy as np
import pytest
import torch
from memories import small_memory

from engram_core import compiled, device_placement
from engram_core.cpu_cores import CpuCores
from engram_core.device import make_device
from engram_core.device_placement import cache_on_device
from engram_core.device_trial import DeviceTrial, try_cache
from engram_core.errors import ConfigError, StateError
from engram_core.memory_config import MemoryConfig
from engram_core.prefetch import Prefetcher
from engram_core.simulated import SimulatedDevice
from engram_core.store.device_cache import DeviceCache

ON = MemoryConfig(device_cache="on")
ROW_BYTES = 4 * 2


@pytest.fixture(autouse=True, scope="module")
def loaded():
    assert compiled.load()


class SmallDevice(SimulatedDevice):
    """A device with little memory."""

    free = 3 * ROW_BYTES

    def memory(self):
        return self.free, self.free


def is_cached(version):
    return {isinstance(tier, DeviceCache) for tier in version.tiers.values()} == {True}


def test_a_cpu_needs_no_cache_and_refuses_one():
    memory, cpu = small_memory(), make_device("cpu")
    assert cache_on_device(memory, cpu, MemoryConfig()) is memory
    with pytest.raises(ConfigError, match="device_cache is 'on' with cpu; accepted: auto or off"):
        cache_on_device(memory, cpu, ON)


def test_what_is_told_is_done():
    memory = small_memory()
    off = MemoryConfig(device_cache="off")
    assert cache_on_device(memory, SimulatedDevice(0.0), off) is memory
    version = cache_on_device(memory, SimulatedDevice(0.0), ON)
    assert is_cached(version)
    assert version.id == memory.id
    assert "device cache on: as told, 0.0 MiB on simulated" in version.why_tiers
    for layer, cache in version.tiers.items():
        assert cache.inner is memory.tiers[layer]
        assert cache.capacity_rows == cache.num_rows // 10


@pytest.mark.parametrize(("cached_s", "said"), [(0.001, "on"), (0.003, "off")])
def test_auto_takes_what_was_faster_and_says_both_times(monkeypatch, cached_s, said):
    monkeypatch.setattr(
        device_placement, "try_cache", lambda tier, device, rows: DeviceTrial(rows, 0.002, cached_s)
    )
    version = cache_on_device(small_memory(), SimulatedDevice(0.0), MemoryConfig())
    assert is_cached(version) == (said == "on")
    figures = f"128 rows take {1e3 * cached_s:.2f} ms with it and 2.00 ms without"
    assert f"device cache {said}: {figures}" in version.why_tiers


def test_the_trial_times_both_ways():
    tier = small_memory().tiers[1]
    for num_rows in (1, 2, 96):
        trial = try_cache(tier, SimulatedDevice(0.0), num_rows)
        assert trial.num_rows == num_rows
        assert trial.plain_s > 0 < trial.cached_s


def test_auto_leaves_a_short_device_and_a_hit_rule_alone():
    short = cache_on_device(small_memory(), SmallDevice(0.0), MemoryConfig())
    assert not is_cached(short)
    assert "device cache off: it would take" in short.why_tiers
    ruled = small_memory(min_hit_orders=(3,))
    version = cache_on_device(ruled, SimulatedDevice(0.0), MemoryConfig())
    assert "device cache off: which tokens contribute is seen" in version.why_tiers
    zeros = MemoryConfig(on_row_failure="off")
    version = cache_on_device(small_memory(), SimulatedDevice(0.0), zeros)
    assert "device cache off: what stands for a missing row" in version.why_tiers
    assert is_cached(cache_on_device(ruled, SimulatedDevice(0.0), ON))


def test_what_cannot_be_done_as_told_is_refused():
    with pytest.raises(ConfigError, match=r"takes .* free; accepted: a smaller device_cache_bytes"):
        cache_on_device(small_memory(), SmallDevice(0.0), ON)
    zeros = MemoryConfig(device_cache="on", on_row_failure="off")
    with pytest.raises(ConfigError, match="with on_row_failure 'off'; accepted: auto or off"):
        cache_on_device(small_memory(), SimulatedDevice(0.0), zeros)
    tiny = MemoryConfig(device_cache="on", device_cache_bytes=ROW_BYTES)
    with pytest.raises(ConfigError, match=r"device_cache_bytes is 8; accepted: at least 1\d,"):
        cache_on_device(small_memory(), SimulatedDevice(0.0), tiny)


@pytest.mark.parametrize(
    ("key", "value"),
    [("device_cache", "yes"), ("device_cache", True), ("device_cache_bytes", -1),
     ("device_cache_bytes", 1.5), ("device_cache_bytes", True), ("device_cache_bytes", 2**63)],
)  # fmt: skip
def test_wrong_values_are_refused(key, value):
    with pytest.raises(ConfigError, match=rf"{key} is .*; accepted: "):
        MemoryConfig.from_dict({key: value})


def test_a_budget_is_shared_by_the_rows_of_the_layers():
    budget = 100 * ROW_BYTES
    config = MemoryConfig(device_cache="on", device_cache_bytes=budget)
    version = cache_on_device(small_memory(), SimulatedDevice(0.0), config)
    sizes = [cache.nbytes for cache in version.tiers.values()]
    assert budget - 2 * ROW_BYTES <= sum(sizes) <= budget


def test_the_last_release_closes_the_caches_and_the_memory_behind_them():
    memory = small_memory()
    version = cache_on_device(memory, SimulatedDevice(0.0), ON)
    ticket_holds = version.acquire()
    version.release()
    assert memory.references == 1
    cache = version.tiers[1]
    assert cache.nbytes > 0
    ticket_holds.release()
    assert memory.references == 0
    assert cache.nbytes == 0
    with pytest.raises(StateError, match="closed"):
        cache.land(np.array([1]))


@pytest.mark.parametrize("rule", [(), (3,)])
@pytest.mark.parametrize("latency_s", [0.0, 0.001])
def test_tickets_read_the_same_rows(rule, latency_s):
    device = SimulatedDevice(latency_s)
    versions = [small_memory(min_hit_orders=rule), small_memory(min_hit_orders=rule)]
    versions[1] = cache_on_device(versions[1], device, ON)
    prefetcher = Prefetcher(device, cores=CpuCores(2, "a test"), inline_max_rows=0)
    prompts = [[5, 9, 33, 2, 9], [9, 33, 2], [5, 9, 33, 2, 9, 5, 9, 33]]
    tickets = [[prefetcher.submit_prompt(v, prompt) for v in versions] for prompt in prompts]
    tickets.append([prefetcher.submit_step(v, np.array([[5, 9, 33]])) for v in versions])
    for plain, cached in tickets:
        for layer in versions[0].layer_ids:
            expected, found = (torch.Tensor(t.rows(layer)[0]) for t in (plain, cached))
            assert torch.equal(expected, found)
    names = set().union(*(s.rows_by_tier for _, t in tickets for s in t.drain_stats()))
    assert names == {"host", "device"}
    for ticket in (t for pair in tickets for t in pair):
        ticket.release()
    prefetcher.close()


def test_cancelled_tickets_leave_nothing_open():
    version = cache_on_device(small_memory(), SimulatedDevice(0.001), ON)
    prefetcher = Prefetcher(SimulatedDevice(0.001), cores=CpuCores(2, "a test"))
    for _ in range(20):
        prefetcher.submit_prompt(version, [5, 9, 33, 2, 9]).cancel()
    prefetcher.close()
    assert (prefetcher.open_tickets, version.references) == (0, 1)
    tier = version.tiers[1]  # a released version forgets its tiers
    version.release()
    assert tier.nbytes == 0
