"""A table on the device gives the rows that host memory gives."""

import numpy as np
import pytest
import torch
from memories import small_memory

from engram_core.cpu_cores import CpuCores
from engram_core.errors import ConfigError, IdRangeError
from engram_core.prefetch import Prefetcher
from engram_core.simulated import SimulatedDevice
from engram_core.store.device_table import DeviceTable
from engram_core.store.host import HostTier

ROWS = torch.randn(37, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
IDS = np.array([0, 36, 5, 5, 17])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gather_into_host_memory(dtype):
    found, expected = (torch.empty(len(IDS), 8, dtype=dtype) for _ in range(2))
    report = DeviceTable(ROWS).gather(IDS, found)
    HostTier(ROWS).gather(IDS, expected)
    assert torch.equal(found, expected)
    assert dict(report.rows_by_tier) == {"device": len(IDS)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_ticket_reads_the_same_rows(dtype):
    tables = {}

    def on_device(layer, tier):
        rows = torch.empty(tier.num_rows, tier.row_dim, dtype=torch.bfloat16)
        tier.gather(np.arange(tier.num_rows), rows)
        tables[layer] = DeviceTable(rows)
        return tables[layer]

    found = []
    for wrap in (None, on_device):
        memory = small_memory(wrap=wrap)
        with_worker = Prefetcher(SimulatedDevice(0.001), dtype=dtype, cores=CpuCores(2, "a test"))
        ticket = with_worker.submit_prompt(memory, [5, 9, 33, 2, 9])
        found.append([torch.Tensor(ticket.rows(layer)[0]) for layer in memory.layer_ids])
        stats = ticket.drain_stats()
        name = "host" if wrap is None else "device"
        assert all(set(each.rows_by_tier) == {name} for each in stats)
        assert all(each.transferred_bytes > 0 for each in stats)
        ticket.release()
        with_worker.close()
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert found[0][0].dtype == dtype


def test_bad_ids_and_tables_are_refused():
    for bad in (-1, 37):
        with pytest.raises(IdRangeError, match="accepted: 0 to 36"):
            DeviceTable(ROWS).gather(np.array([bad]), torch.empty(1, 8))
    for rows in (ROWS.float(), ROWS[0]):
        with pytest.raises(ConfigError, match="two dimensions in bfloat16"):
            DeviceTable(rows)


def test_bad_ids_of_a_ticket_are_refused():
    memory = small_memory(
        wrap=lambda layer, tier: DeviceTable(ROWS[:, :4].repeat(300, 1)[: tier.num_rows])
    )
    prefetcher = Prefetcher(SimulatedDevice(0.0), cores=CpuCores(1, "a test"))
    ticket = prefetcher.submit_prompt(memory, [5, 9])
    object.__setattr__(memory.tiers[1], "num_rows", 1)
    with pytest.raises(IdRangeError):
        ticket.rows(1)
    ticket.release()
    prefetcher.close()
