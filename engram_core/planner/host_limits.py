"""HostLimits: what the system lets a process on this machine have, read from Linux.

The one part of the planner that looks at a machine. A limit that the system does not tell is None.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from engram_core.cgroup import memory_limits, read_text
from engram_core.cpu_cores import CpuCores, usable_cores


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits of this process.

    Attributes:
        memory: bytes of memory, the smaller of the machine's and every cgroup's limit.
        memory_source: which of them decided.
        shm: bytes of ``/dev/shm``.
        memlock: bytes that may be locked in memory (``RLIMIT_MEMLOCK``); None: no limit.
        open_files: ``RLIMIT_NOFILE``; None: no limit.
        huge_pages: transparent huge pages: ``always``, ``madvise`` or ``never``.
        hugetlb: bytes of free reserved huge pages.
        cores: usable cores and what limits them.
    """

    memory: int | None
    memory_source: str
    shm: int | None
    memlock: int | None
    open_files: int | None
    huge_pages: str | None
    hugetlb: int
    cores: CpuCores

    @classmethod
    def read(cls, root: Path = Path("/")) -> Self:
        """The limits of the calling process; another `root` is for tests."""
        proc_cgroup, cgroups = root / "proc/self/cgroup", root / "sys/fs/cgroup"
        facts = dict(_memory_facts(root / "proc/meminfo"))
        memory, source = _memory(facts.get("MemTotal"), proc_cgroup, cgroups)
        return cls(
            memory=memory,
            memory_source=source,
            shm=_file_system_bytes(root / "dev/shm"),
            memlock=_limit(resource.RLIMIT_MEMLOCK),
            open_files=_limit(resource.RLIMIT_NOFILE),
            huge_pages=_chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
            hugetlb=facts.get("HugePages_Free", 0) * facts.get("Hugepagesize", 0),
            cores=usable_cores(proc_cgroup, cgroups),
        )


def _memory(total: int | None, proc_cgroup: Path, root: Path) -> tuple[int | None, str]:
    limits = [limit for _, _, limit in memory_limits(proc_cgroup, root)]
    if limits and (total is None or min(limits) < total):
        return min(limits), "the cgroup's memory limit"
    return total, "the machine's memory"


def _memory_facts(meminfo: Path) -> Iterator[tuple[str, int]]:
    """Entries of meminfo; those in kB become bytes."""
    for line in read_text(meminfo).splitlines():
        name, _, value = line.partition(":")
        number, *unit = value.split() or [""]
        if number.isdigit():
            yield name, int(number) * (1024 if unit else 1)


def _chosen(path: Path) -> str | None:
    """The word in brackets: ``always [madvise] never``."""
    words = [word for word in read_text(path).split() if word.startswith("[")]
    return words[0].strip("[]") if words else None


def _file_system_bytes(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft
