"""How many processor cores this process may use, affinity and cgroup quota included.

A container with a quota of one core sees all of its host's cores; a prefetch worker there would
only take turns with compute. Reads Linux files; elsewhere the affinity or core count decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC_CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class CpuCores:
    """Usable cores and the limit that decided.

    Attributes:
        count: cores, fractions possible under a quota.
        source: ``"affinity"`` or ``"cgroup quota"``.
    """

    count: float
    source: str

    def __str__(self) -> str:
        unit = "core" if self.count == 1 else "cores"
        return f"{self.count:g} {unit} ({self.source})"


def usable_cores(proc_cgroup: Path = PROC_CGROUP, cgroup_root: Path = CGROUP_ROOT) -> CpuCores:
    """The smaller of the affinity mask and every cgroup quota above this process."""
    affinity = float(_affinity_cores())
    quota = min(_quotas(proc_cgroup, cgroup_root), default=affinity)
    if quota < affinity:
        return CpuCores(quota, "cgroup quota")
    return CpuCores(affinity, "affinity")


def _affinity_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_folders(controller: str, proc_cgroup: Path, root: Path) -> Iterator[tuple[int, Path]]:
    """Version (1 or 2) and folder of every cgroup whose `controller` limits this process."""
    for line in _read(proc_cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from ((2, folder) for folder in _upwards(root, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _upwards(root / controller, path))


def _quotas(proc_cgroup: Path, root: Path) -> Iterator[float]:
    for version, folder in cgroup_folders("cpu", proc_cgroup, root):
        yield from _quota_v2(folder) if version == 2 else _quota_v1(folder)


def _upwards(root: Path, path: str) -> list[Path]:
    """The cgroup's folder and its ancestors; inside a container only the root may exist."""
    leaf = root / path.lstrip("/")
    return [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(root))]


def _quota_v2(folder: Path) -> Iterator[float]:
    words = _read(folder / "cpu.max").split()
    if len(words) == 2 and words[0] != "max":
        yield int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> Iterator[float]:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
