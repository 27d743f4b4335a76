"""HostLimits: both cgroup versions, huge pages and limits as files say them, and this machine."""

import resource

import pytest

from engram_core.planner.host_limits import HostLimits

MEMINFO = """\
MemTotal:       16777216 kB
SomethingNew:
HugePages_Total:      12
HugePages_Free:        8
Hugepagesize:       2048 kB
"""


@pytest.fixture
def lay_out(tmp_path):
    """Writes files below an empty root and reads the limits there."""

    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return HostLimits.read(tmp_path)

    return write


@pytest.mark.parametrize(
    ("files", "memory", "source"),
    [
        ({}, 16 * 2**30, "the machine's memory"),
        (
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1048576\n"},
            2**20,
            "the cgroup's memory limit",
        ),
        (
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"},
            16 * 2**30,
            "the machine's memory",
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n2:cpu:/x\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2097152\n",
            },
            2**21,
            "the cgroup's memory limit",
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            16 * 2**30,
            "the machine's memory",
        ),
    ],
)
def test_the_smallest_memory_limit_decides(lay_out, files, memory, source):
    limits = lay_out({"proc/meminfo": MEMINFO, **files})
    assert (limits.memory, limits.memory_source) == (memory, source)


def test_huge_pages(lay_out):
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    limits = lay_out({"proc/meminfo": MEMINFO, path: "always [madvise] never\n"})
    assert limits.huge_pages == "madvise"
    assert limits.hugetlb == 8 * 2 * 2**20


def test_what_a_system_does_not_tell_is_unknown(lay_out):
    limits = lay_out({})
    assert (limits.memory, limits.huge_pages, limits.hugetlb, limits.shm) == (None, None, 0, None)


def test_limits_of_this_process():
    limits = HostLimits.read()
    assert limits.memory > 2**20
    assert limits.cores.count > 0
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits.open_files == (None if soft == resource.RLIM_INFINITY else soft)
