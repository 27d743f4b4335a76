"""Resource: what one border of the busiest host must carry, and what it can.

Borders: to the accelerator, host memory, an extra memory node, the SSD (reads and bytes) and the
network. Knows shares of reads and rates; knows no rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from engram_core.planner.hosts import HostBudget
from engram_core.planner.placement import Placement
from engram_core.planner.records import LINE_BYTES, PAGE_BYTES, lines
from engram_core.planner.shape import MemoryShape

ID_BYTES = 8  # what asking another host for a row sends
READS_IN_FLIGHT = 10  # cache lines that one core waits for at once


@dataclass(frozen=True, slots=True)
class Resource:
    """One border of a host.

    Attributes:
        name: for example ``"ssd_iops"``: the budget's own name.
        unit: what is counted.
        needed: units per second for the target, on the busiest host.
        available: units per second that the budget gives; None when it does not say.
    """

    name: str
    unit: str
    needed: float
    available: float | None

    @property
    def used(self) -> float | None:
        """Needed by available, 0 when nothing is needed; None without a limit."""
        return None if self.available is None else self.needed / self.available


def resources(
    shape: MemoryShape, hosts: HostBudget, placement: Placement, tokens_per_s: float
) -> tuple[Resource, ...]:
    """The needs of `tokens_per_s` of all hosts together, at the host with the largest shard."""
    record, shares = shape.record, placement.shares
    rows_per_s = shape.rows_per_token * tokens_per_s  # of all hosts
    shard = rows_per_s * placement.shard_heads / shape.num_heads
    missed = 1.0 - shares["device"]
    to_device = rows_per_s / hosts.num_hosts * missed if hosts.device_memory else 0.0
    crossing = rows_per_s * missed * _crossing_share(shape, hosts, placement)
    pages = shard * shares["ssd"] * record.pages_per_read
    row_bytes = record.output_bytes
    held_bytes = lines(row_bytes) if placement.is_cached else record.line_bytes
    extra = shard * shares["extra"] * held_bytes
    needs = {
        "device_bandwidth": to_device * row_bytes,
        "dram_bandwidth": shard * shares["dram"] * held_bytes,
        "extra_bandwidth": extra,
        "ssd_iops": pages,
        "ssd_bandwidth": pages * PAGE_BYTES,
        "network_bandwidth": crossing * (record.bytes + ID_BYTES),
    }
    found = [
        Resource(name, "pages" if name == "ssd_iops" else "bytes", need, hosts.limit(name))
        for name, need in needs.items()
    ]
    return (*found, _extra_latency(hosts, extra))


def _crossing_share(shape: MemoryShape, hosts: HostBudget, placement: Placement) -> float:
    """Share of missed reads that cross one host's network, in its busier direction."""
    others = 1.0 - 1.0 / hosts.num_hosts
    given = placement.shard_heads / shape.num_heads * others
    smallest = shape.num_heads // hosts.num_hosts / shape.num_heads
    taken = (1.0 - smallest) / hosts.num_hosts
    return max(given, taken)


def _extra_latency(hosts: HostBudget, extra: float) -> Resource:
    """Little's law: a core has only so many reads on their way."""
    latency = hosts.extra_latency_ns
    available = None if latency is None else READS_IN_FLIGHT / latency * 1e9
    return Resource("extra_latency_ns", "cache lines", extra / LINE_BYTES, available)
