"""Runs two sides in alternating pairs over one workload. Knows neither side from the inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Protocol

from benchmarks.bootstrap import RatioInterval, ratio_interval
from benchmarks.run_times import RunTimes
from benchmarks.workload import Workload


class Side(Protocol):
    """One way to generate."""

    name: str

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokens per second of both sides on one workload, pair by pair.

    Attributes:
        equal_answers: share of sequences whose tokens were the same on both sides.
    """

    workload: Workload
    rates: dict[str, list[float]]
    interval: RatioInterval
    equal_answers: float

    def medians(self) -> dict[str, float]:
        """Median rate of each side, in tokens per second."""
        return {name: median(rates) for name, rates in self.rates.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {**asdict(self), "medians": self.medians()}


def compare(
    first: Side, second: Side, workload: Workload, token_ids: Sequence[int], num_pairs: int
) -> Comparison:
    """Run both sides `num_pairs` times, after one pair that is not counted.

    Within a pair both get the same prompts; which side goes first changes from pair to pair.
    """
    rates: dict[str, list[float]] = {first.name: [], second.name: []}
    equal = []
    for pair in range(-1, num_pairs):
        order = (first, second) if pair % 2 else (second, first)
        prompts = workload.prompts(token_ids, offset=max(pair, 0) % 8 * workload.prompt_tokens)
        runs = {side.name: side.run(prompts, workload.new_tokens) for side in order}
        if pair < 0:
            continue
        for name, run in runs.items():
            rates[name].append(_rate(run, workload))
        equal += _equal_answers(*runs.values())
    interval = ratio_interval(rates[first.name], rates[second.name])
    return Comparison(workload, rates, interval, sum(equal) / len(equal))


def _rate(run: RunTimes, workload: Workload) -> float:
    if workload.measures_prefill:
        return run.prefill_rate(workload.num_seqs * workload.prompt_tokens)
    return run.decode_rate()


def _equal_answers(one: RunTimes, other: RunTimes) -> list[bool]:
    return [list(a) == list(b) for a, b in zip(one.token_ids, other.token_ids, strict=True)]
