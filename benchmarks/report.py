"""What a benchmark writes down beside its figures: the machine, the releases, the parameters."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

RELEASES = ("engram-server", "numpy", "tokenizers", "torch", "transformers")


def environment() -> dict[str, Any]:
    """The machine and the releases of everything that computes."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "releases": {name: _release(name) for name in RELEASES},
    }


def write_json(path: Path | None, data: Mapping[str, Any]) -> None:
    """Write the report; None writes nothing."""
    if path is not None:
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, as docs/benchmarks.md shows it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _release(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
