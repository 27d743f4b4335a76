"""FuseReport: how many layers of a model run fused, and why others do not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FuseReport:
    """What fusing did.

    Attributes:
        num_fused: layers that were replaced.
        total: layers of the model.
        reason: why the first of the others was not, in one sentence; None when all were.
    """

    num_fused: int
    total: int
    reason: str | None
