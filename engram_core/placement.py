"""Placement: in which tier the packed tables of an artefact lie, and why.

A decision from sizes alone; knows no files and makes no tiers.
"""

from __future__ import annotations

from dataclasses import dataclass

from engram_core.host_memory import HostMemory

_DRAM_SHARE = 0.6  # of the free memory; the backbone's caches and everybody else need the rest
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tables lie.

    Attributes:
        tier: ``"dram"`` or ``"ssd"``. why: the reason, for people.
    """

    tier: str
    why: str


def place_tables(table_bytes: int, choice: str, memory: HostMemory) -> Placement:
    """Choose the tier of tables that take `table_bytes` together.

    Args:
        table_bytes: of all layers.
        choice: ``"auto"``, ``"dram"`` or ``"ssd"``.
        memory: what is free.
    """
    sizes = (
        f"the tables take {table_bytes / _GIB:.2f} GiB and {memory.free_bytes / _GIB:.2f} GiB are "
        f"free ({memory.source})"
    )
    if choice != "auto":
        return Placement(choice, f"{choice}: as told; {sizes}")
    if table_bytes <= memory.free_bytes * _DRAM_SHARE:
        return Placement("dram", f"dram: {sizes}")
    return Placement("ssd", f"ssd: {sizes}, of which tables get at most {_DRAM_SHARE:.0%}")
