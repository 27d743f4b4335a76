"""check_host: a plan held against a host's limits, one sentence each.

Pure: the limits come from `HostLimits`. Each sentence has both values; where they do not agree it
also says what to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from engram_core.planner.host_limits import HostLimits
from engram_core.planner.planning import Plan

OWN_FILES = 64  # libraries, logs, event loop
MIN_CORES = 2


@dataclass(frozen=True, slots=True)
class HostCheck:
    """One limit: whether the plan lives within it, and the sentence that says so."""

    name: str
    ok: bool
    sentence: str


def check_host(plan: Plan, limits: HostLimits, connections: int) -> tuple[HostCheck, ...]:
    """Every limit of the host beside what `plan` and `connections` clients at once need."""
    rows = f"{_size(plan.dram_bytes)} of rows are planned in its DRAM"
    return (
        _memory(plan, limits, rows),
        _shared_memory(plan, limits, rows),
        _locked_memory(plan, limits, rows),
        _open_files(plan, limits, connections),
        _huge_pages(plan, limits, rows),
        _reserved_pages(plan, limits, rows),
        _cores(limits),
    )


def _memory(plan: Plan, limits: HostLimits, rows: str) -> HostCheck:
    ok = limits.memory is None or limits.memory >= plan.dram_bytes
    fact = f"{limits.memory_source} is {_size(limits.memory)} and {rows}"
    change = "give the container or the host more (docker run --memory) or plan with less --dram"
    return _check("memory", ok, fact, change)


def _shared_memory(plan: Plan, limits: HostLimits, rows: str) -> HostCheck:
    ok = limits.shm is None or limits.shm >= plan.dram_bytes
    fact = f"the size of /dev/shm is {_size(limits.shm)} and {rows}"
    change = (
        "processes that share tables there need as much: enlarge it (docker run --shm-size), or "
        "let each process map the table's file"
    )
    return _check("shm", ok, fact, change)


def _locked_memory(plan: Plan, limits: HostLimits, rows: str) -> HostCheck:
    ok = limits.memlock is None or limits.memlock >= plan.dram_bytes
    fact = f"RLIMIT_MEMLOCK is {_size(limits.memlock)} and {rows}"
    change = (
        "rows cannot be kept from being swapped out: set ulimit -l unlimited "
        "(docker run --ulimit memlock=-1) or run without swap"
    )
    return _check("memlock", ok, fact, change)


def _open_files(plan: Plan, limits: HostLimits, connections: int) -> HostCheck:
    needed = OWN_FILES + len(plan.rows) + connections
    found = "unlimited" if limits.open_files is None else str(limits.open_files)
    ok = limits.open_files is None or limits.open_files >= needed
    fact = f"RLIMIT_NOFILE is {found} and tables, {connections} clients and the rest are {needed}"
    return _check("open files", ok, fact, f"set ulimit -n {needed} or more")


def _huge_pages(plan: Plan, limits: HostLimits, rows: str) -> HostCheck:
    covered = limits.hugetlb >= plan.dram_bytes
    ok = limits.huge_pages in ("always", "madvise") or covered
    fact = f"transparent huge pages are {limits.huge_pages or 'unknown'} and {rows}"
    change = "random reads of small pages are far slower: set them to madvise or always"
    return _check("huge pages", ok, fact, change)


def _reserved_pages(plan: Plan, limits: HostLimits, rows: str) -> HostCheck:
    """Reserved pages that hold nothing planned are memory that nobody else can have."""
    both = limits.hugetlb + plan.dram_bytes
    is_small = 0 < limits.hugetlb < plan.dram_bytes
    ok = not is_small or limits.memory is None or both <= limits.memory
    fact = f"hugetlb keeps {_size(limits.hugetlb)} of {_size(limits.memory)} free and {rows}"
    change = "the reserve is too small for the rows and takes their room: change vm.nr_hugepages"
    return _check("hugetlb", ok, fact, change)


def _cores(limits: HostLimits) -> HostCheck:
    ok = limits.cores.count >= MIN_CORES
    fact = f"usable are {limits.cores} and compute and lookups want {MIN_CORES}"
    change = "with fewer no lookup runs beside compute: raise the quota (docker run --cpus)"
    return _check("cores", ok, fact, change)


def _check(name: str, ok: bool, fact: str, change: str) -> HostCheck:
    return HostCheck(name, ok, fact if ok else f"{fact}; {change}")


def _size(num_bytes: int | None) -> str:
    return "unlimited" if num_bytes is None else f"{num_bytes / 2**30:,.2f} GiB"
