"""Where this process's control groups are, leaf first, and what memory they allow.

Linux; elsewhere there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PROC_CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")
_MEMORY_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_UNLIMITED = 2**60  # version 1 writes the largest page-aligned number for "none"


def cgroup_folders(
    controller: str, proc_cgroup: Path = PROC_CGROUP, root: Path = CGROUP_ROOT
) -> Iterator[tuple[int, Path]]:
    """The version (1 or 2) and folder of every group above this process that limits `controller`.

    Args:
        controller: ``"cpu"`` or ``"memory"``.
        proc_cgroup: the file that names this process's groups.
        root: where the groups' folders are.
    """
    for line in read_text(proc_cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from ((2, folder) for folder in _upwards(root, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _upwards(root / controller, path))


def memory_limits(
    proc_cgroup: Path = PROC_CGROUP, root: Path = CGROUP_ROOT
) -> Iterator[tuple[int, Path, int]]:
    """The version, folder and limit in bytes of every group that limits this process's memory."""
    for version, folder in cgroup_folders("memory", proc_cgroup, root):
        limit = read_text(folder / _MEMORY_LIMIT[version]).strip()
        if limit.isdigit() and int(limit) < _UNLIMITED:
            yield version, folder, int(limit)


def read_text(path: Path) -> str:
    """A system file's text; empty where it does not exist or is none."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _upwards(root: Path, path: str) -> list[Path]:
    """The group's folder and its ancestors; inside a container only the root may exist."""
    leaf = root / path.lstrip("/")
    return [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(root))]
