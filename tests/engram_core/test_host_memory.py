"""Free memory: the host's, or what is left of a control group's limit."""

import pytest

from engram_core.host_memory import HostMemory, free_host_memory


@pytest.fixture
def files(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable:   1000 kB\n")
    (tmp_path / "root" / "a").mkdir(parents=True)
    return tmp_path


def free(folder):
    return free_host_memory(folder / "meminfo", folder / "cgroup", folder / "root")


def test_without_groups_the_host_decides(files):
    assert free(files) == HostMemory(1_024_000, "host")


def test_a_group_above_may_be_the_tightest(files):
    (files / "cgroup").write_text("0::/a\n")
    (files / "root" / "a" / "memory.max").write_text("max\n")
    (files / "root" / "a" / "memory.current").write_text("10\n")
    (files / "root" / "memory.max").write_text("5000\n")
    (files / "root" / "memory.current").write_text("4000\n")
    (files / "root" / "memory.stat").write_text("anon 1\ninactive_file 600\n")
    assert free(files) == HostMemory(1600, "cgroup limit")


def test_version_1_writes_a_huge_number_for_none(files):
    folder = files / "root" / "memory" / "a"
    folder.mkdir(parents=True)
    (files / "cgroup").write_text("4:memory:/a\n")
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "memory.usage_in_bytes").write_text("5\n")
    assert free(files).source == "host"
    (folder / "memory.limit_in_bytes").write_text("3000\n")
    (folder / "memory.usage_in_bytes").write_text("3500\n")
    assert free(files) == HostMemory(0, "cgroup limit")
