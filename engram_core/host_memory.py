"""How much host memory this process may still take, control groups included.

A container's limit is unknown to ``MemAvailable``: a table that fits the host may get the container
killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engram_core.cgroup import CGROUP_ROOT, PROC_CGROUP, memory_limits, read_text

MEMINFO = Path("/proc/meminfo")
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory that is still free for this process.

    Attributes:
        free_bytes: as the system counts it, reclaimable caches included.
        source: ``"host"`` or ``"cgroup limit"``: which of them is the smaller.
    """

    free_bytes: int
    source: str


def free_host_memory(
    meminfo: Path = MEMINFO, proc_cgroup: Path = PROC_CGROUP, cgroup_root: Path = CGROUP_ROOT
) -> HostMemory:
    """The smaller of the host's available memory and every group's rest."""
    host = _available_bytes(meminfo)
    rest = min(_rests(proc_cgroup, cgroup_root), default=host)
    return HostMemory(rest, "cgroup limit") if rest < host else HostMemory(host, "host")


def _available_bytes(meminfo: Path) -> int:
    """Linux counts what its caches would give back, which "free pages" leaves out."""
    match = re.search(r"^MemAvailable: +(\d+) kB$", read_text(meminfo), re.MULTILINE)
    if match:
        return int(match[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _rests(proc_cgroup: Path, root: Path) -> Iterator[int]:
    for version, folder, limit in memory_limits(proc_cgroup, root):
        usage = read_text(folder / _USAGE[version]).strip()
        if usage.isdigit():
            yield max(0, limit - int(usage) + _reclaimable_bytes(folder))


def _reclaimable_bytes(folder: Path) -> int:
    """File pages that the group counts as used and would give back."""
    match = re.search(r"^(?:total_)?inactive_file (\d+)$", read_text(folder / "memory.stat"), re.M)
    return int(match[1]) if match else 0
