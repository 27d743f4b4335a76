"""Capacity planning: what a memory of a given size needs of its hosts, without building it."""

from __future__ import annotations

from engram_core.planner.counted import CountedAccess
from engram_core.planner.hosts import HostBudget
from engram_core.planner.planning import Plan, Target, plan
from engram_core.planner.records import RecordFormat
from engram_core.planner.shape import MemoryShape
from engram_core.planner.zipf import ZipfAccess

__all__ = [
    "CountedAccess",
    "HostBudget",
    "MemoryShape",
    "Plan",
    "RecordFormat",
    "Target",
    "ZipfAccess",
    "plan",
]
