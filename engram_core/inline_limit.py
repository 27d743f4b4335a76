"""InlineLimit: up to how many rows a decode step is looked up by its layer, and why.

Handing rows to a worker costs compute about the same however many they are, and takes the time of
the rows off it. A decision from given numbers; measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engram_core.cpu_cores import CpuCores
from engram_core.row_cost import in_us

DEFAULT_INLINE_MAX_ROWS = 4096  # where nothing was measured
# below it what a lookup does under the interpreter's lock, which no worker hides, is most of it
INLINE_RANGE = (1024, 32768)


@dataclass(frozen=True, slots=True)
class InlineLimit:
    """The decision.

    Attributes:
        max_rows: per layer; a step with more is handed to the worker.
        why: the same with its reason, for people.
    """

    max_rows: int
    why: str


def choose_inline_limit(
    told: int | Literal["auto"],
    cores: CpuCores,
    handoff_s: float | None = None,
    row_s: float | None = None,
    blocking: str | None = None,
) -> InlineLimit:
    """Where handing over begins to pay.

    The worker takes a core from the compute it runs beside: of the rows' time, compute gets back
    all but one core's share.

    Args:
        told: ``inline_max_rows`` as the operator said it.
        cores: that compute and worker share.
        handoff_s: seconds to hand over and to be told that it is done; None: not measured.
        row_s: seconds to gather a row; None: not measured.
        blocking: a tier that waits for disk or network; None: no tier does.
    """
    if blocking is not None:
        return InlineLimit(0, f"every decode step is handed over: it may wait for {blocking}")
    if told != "auto":
        return InlineLimit(told, f"{_steps(told)}: as told")
    if not handoff_s or not row_s:
        default = DEFAULT_INLINE_MAX_ROWS
        return InlineLimit(default, f"{_steps(default)}: nothing was measured")
    won_s = row_s * (1 - 1 / cores.count) if cores.count > 1 else 0.0
    least, most = INLINE_RANGE
    rows = int(min(handoff_s / won_s, 2**62)) if won_s else most
    limit = min(max(rows, least), most)
    bound = "" if rows == limit else f", kept within {least} to {most}"
    why = f"handing over takes {in_us(handoff_s)}, a row {in_us(row_s)}, {cores}{bound}"
    return InlineLimit(limit, f"{_steps(limit)}: {why}")


def _steps(rows: int) -> str:
    return f"decode steps of at most {rows} rows are looked up in their layer"
