"""usable_cores: the tightest of affinity and cgroup quotas, both generations."""

import os

import pytest

from engram_core import cpu_cores
from engram_core.cpu_cores import CpuCores, usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A process with eight cores in its affinity; returns a call that lays out its cgroups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    def lay_out(membership, files):
        (tmp_path / "cgroup").write_text(membership)
        for name, text in files.items():
            (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "sys" / name).write_text(text)
        return usable_cores(tmp_path / "cgroup", tmp_path / "sys")

    return lay_out


V1 = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, CpuCores(8, "affinity")),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n"}, CpuCores(1, "cgroup quota")),
        ("0::/gone\n", {"cpu.max": "150000 100000\n"}, CpuCores(1.5, "cgroup quota")),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, CpuCores(8, "affinity")),
        ("3:cpu,cpuacct:/\n", V1, CpuCores(8, "affinity")),
        ("3:cpu:/x\n", {**V1, "cpu/cpu.cfs_quota_us": "200000"}, CpuCores(2, "cgroup quota")),
        ("1:memory:/\n0::/\n", {}, CpuCores(8, "affinity")),
    ],
)
def test_the_tightest_limit_decides(machine, membership, files, expected):
    assert machine(membership, files) == expected


def test_without_any_cgroup_the_affinity_decides(machine, tmp_path):
    machine("", {})
    assert usable_cores(tmp_path / "missing", tmp_path) == CpuCores(8, "affinity")


def test_without_affinity_the_machine_decides(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert cpu_cores._affinity_cores() == 3


def test_it_reads_as_a_phrase():
    assert str(CpuCores(1, "cgroup quota")) == "1 core (cgroup quota)"
    assert str(CpuCores(1.5, "affinity")) == "1.5 cores (affinity)"
