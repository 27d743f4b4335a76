"""NativeReport: what runs on compiled kernels, and why the rest does not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NativeReport:
    """Which kernels compute a model.

    Attributes:
        num_layers: decoder layers that are one compiled call each or together.
        num_linears: linear layers beside them.
        formats: number formats of their weights, as a phrase.
        nbytes: memory of these weights, second copies included.
        reason: one sentence: why native, or why not.
    """

    num_layers: int
    num_linears: int
    formats: str
    nbytes: int
    reason: str
