"""HostBudget: the hosts that share a memory, and what each of them offers.

Rows are sharded by head: a host holds some heads of every order in every layer, so each shard is
read alike. Knows nothing of rows and reads no machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from engram_core.planner.validation import require, require_number, require_whole

MAX_HOSTS = 4096
MAX_BYTES = 2**60
MAX_RATE = 1e18

RATES = (
    "ssd_iops",
    "ssd_bandwidth",
    "network_bandwidth",
    "extra_bandwidth",
    "dram_bandwidth",
    "device_bandwidth",
)


@dataclass(frozen=True, slots=True)
class HostBudget:
    """What EACH of `num_hosts` equal hosts gives to the memory. None: not given.

    Attributes:
        num_hosts: hosts that serve and hold a shard each.
        dram: bytes of host memory for rows.
        device_memory: bytes of accelerator memory for the hottest rows.
        extra_memory: bytes of one more memory node (CXL or another NUMA node).
        extra_latency_ns: latency of a read from it. extra_bandwidth: bytes per second.
        ssd_iops: page reads per second; 0 or None means that there is no SSD.
        ssd_bandwidth: bytes per second. network_bandwidth: bytes per second and direction.
        dram_bandwidth: bytes per second. device_bandwidth: bytes per second to the accelerator.
    """

    num_hosts: int = 1
    dram: int = 0
    device_memory: int = 0
    extra_memory: int = 0
    extra_latency_ns: float | None = None
    extra_bandwidth: float | None = None
    ssd_iops: float | None = None
    ssd_bandwidth: float | None = None
    network_bandwidth: float | None = None
    dram_bandwidth: float | None = None
    device_bandwidth: float | None = None

    def __post_init__(self) -> None:
        require_whole("num_hosts", self.num_hosts, 1, MAX_HOSTS)
        for name in ("dram", "device_memory", "extra_memory"):
            require_whole(name, getattr(self, name), 0, MAX_BYTES)
        for name in RATES:
            if getattr(self, name) is not None:
                require_number(name, getattr(self, name), 0 if name == "ssd_iops" else 1, MAX_RATE)
        if self.extra_latency_ns is not None:
            require_number("extra_latency_ns", self.extra_latency_ns, 1, 1e9)
        self._check_companions()

    def limit(self, name: str) -> float | None:
        """A rate by its name; None when it was not given, or is the 0 of a missing SSD."""
        value: float | None = getattr(self, name)
        return value or None

    @property
    def has_ssd(self) -> bool:
        """Whether rows may lie on an SSD."""
        return bool(self.ssd_iops)

    def _check_companions(self) -> None:
        """What is given must have something that it belongs to."""
        for name in ("extra_latency_ns", "extra_bandwidth"):
            ok = getattr(self, name) is None or self.extra_memory > 0
            require(ok, "extra_memory", self.extra_memory, f"bytes above 0 where {name} is given")
        ok = self.ssd_bandwidth is None or self.has_ssd
        require(ok, "ssd_iops", self.ssd_iops, "a number above 0 where ssd_bandwidth is given")
        ok = self.network_bandwidth is not None or self.num_hosts == 1
        accepted = f"bytes per second above 0 for {self.num_hosts} hosts"
        require(ok, "network_bandwidth", self.network_bandwidth, accepted)
