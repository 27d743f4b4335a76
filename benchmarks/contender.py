"""What takes part in a comparison: the protocol that every module of `contenders/` follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from benchmarks.run_times import RunTimes


class Contender(Protocol):
    """One way to generate greedily.

    Attributes:
        name: how tables and reports call it.
        bits: number format of the weights; only contenders of equal bits make a fair pair.
        has_memory: whether the Engram memory takes part.
    """

    name: str
    bits: str
    has_memory: bool

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate exactly `new_tokens` for each prompt, side by side."""


class UnavailableError(Exception):
    """A contender that cannot take part here; the message is one sentence that says why."""
