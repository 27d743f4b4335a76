"""check_host: both values in every sentence, and what to change where they do not agree."""

from dataclasses import replace

import pytest

from engram_core.cpu_cores import CpuCores
from engram_core.planner import HostBudget, MemoryShape, RecordFormat, Target, ZipfAccess, plan
from engram_core.planner.host_checks import check_host
from engram_core.planner.host_limits import HostLimits

GIB = 2**30
ROOMY = HostLimits(
    memory=64 * GIB,
    memory_source="the machine's memory",
    shm=32 * GIB,
    memlock=None,
    open_files=65_536,
    huge_pages="madvise",
    hugetlb=0,
    cores=CpuCores(8, "affinity"),
)


@pytest.fixture(scope="module")
def made():
    """A plan with two gibibytes of rows in host memory."""
    shape = MemoryShape((2**24,), (2,), 1, RecordFormat("bfloat16", 64))
    return plan(shape, HostBudget(dram=4 * GIB), Target(1), ZipfAccess(shape, 1))


def test_a_roomy_host_passes_with_both_values_said(made):
    checks = check_host(made, ROOMY, connections=100)
    assert [check.name for check in checks if not check.ok] == []
    assert checks[0].sentence == (
        "the machine's memory is 64.00 GiB and 2.00 GiB of rows are planned in its DRAM"
    )
    assert checks[3].sentence == (
        "RLIMIT_NOFILE is 65536 and tables, 100 clients and the rest are 165"
    )


@pytest.mark.parametrize(
    ("name", "limits", "found", "needed", "change"),
    [
        ("memory", {"memory": GIB}, "1.00 GiB", "2.00 GiB", "plan with less --dram"),
        ("shm", {"shm": 2**26}, "0.06 GiB", "2.00 GiB", "docker run --shm-size"),
        ("memlock", {"memlock": 2**23}, "0.01 GiB", "2.00 GiB", "ulimit -l unlimited"),
        ("open files", {"open_files": 128}, "is 128", "are 165", "ulimit -n 165"),
        ("huge pages", {"huge_pages": "never"}, "never", "2.00 GiB", "madvise or always"),
        ("huge pages", {"huge_pages": None}, "unknown", "2.00 GiB", "madvise or always"),
        (
            "hugetlb",
            {"hugetlb": GIB, "memory": int(2.5 * GIB)},
            "1.00 GiB of 2.50 GiB",
            "2.00 GiB",
            "vm.nr_hugepages",
        ),
        ("cores", {"cores": CpuCores(1, "cgroup quota")}, "1 core", "want 2", "docker run --cpus"),
    ],
)
def test_each_limit_is_one_sentence(made, name, limits, found, needed, change):
    checks = check_host(made, replace(ROOMY, **limits), connections=100)
    failed = {check.name: check.sentence for check in checks if not check.ok}
    assert set(failed) == {name}
    for part in (found, needed, change):
        assert part in failed[name]
    assert "\n" not in failed[name]


def test_reserved_huge_pages_that_hold_the_rows_will_do(made):
    limits = replace(ROOMY, huge_pages="never", hugetlb=3 * GIB, memory=4 * GIB)
    assert all(check.ok for check in check_host(made, limits, connections=1))


def test_what_is_unlimited_or_unknown_is_enough(made):
    limits = replace(ROOMY, memory=None, shm=None, memlock=None, open_files=None)
    assert all(check.ok for check in check_host(made, limits, connections=10**6))
