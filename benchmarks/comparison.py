"""Runs contenders in alternating rounds over one workload. Knows none of them from the inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeVar

from benchmarks.bootstrap import RatioInterval, ratio_interval
from benchmarks.contender import Contender
from benchmarks.prompt_source import Prompts
from benchmarks.run_times import RunTimes
from benchmarks.workload import Workload

AnyContender = TypeVar("AnyContender")


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender's part in a comparison.

    Attributes:
        name: the contender's.
        bits: number format of its weights.
        has_memory: whether the Engram memory took part.
        rates: tokens per second, round by round.
        first: how many times its median the first contender's is, with an interval over rounds;
            None for the first itself.
        same_answers: share of sequences whose tokens were the first contender's; None where a
            contender tells no tokens.
    """

    name: str
    bits: str
    has_memory: bool
    rates: tuple[float, ...]
    first: RatioInterval | None
    same_answers: float | None

    @property
    def median(self) -> float:
        """Median rate, in tokens per second."""
        return median(self.rates)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All contenders on one workload; the first is what the others are compared with."""

    workload: Workload
    entries: tuple[Entry, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        entries = [{**asdict(entry), "median": entry.median} for entry in self.entries]
        return {"workload": asdict(self.workload), "entries": entries}


def compare(
    contenders: Sequence[Contender], workload: Workload, prompts: Prompts, num_rounds: int
) -> Comparison:
    """Run every contender `num_rounds` times, after one round that is not counted.

    All get the same prompts within a round. Who begins, and in which direction it goes on,
    changes from round to round, so that slow drifts of the machine meet all alike.
    """
    rounds: list[dict[str, RunTimes]] = []
    for number in range(-1, num_rounds):
        given = prompts.take(workload.num_seqs, workload.prompt_tokens)
        runs = {
            contender.name: contender.run(given, workload.new_tokens)
            for contender in turn(contenders, number)
        }
        if number >= 0:
            rounds.append(runs)
    return Comparison(
        workload, tuple(_entry(c, contenders[0], rounds, workload) for c in contenders)
    )


def turn(contenders: Sequence[AnyContender], number: int) -> list[AnyContender]:
    """The order of a round: another one begins each time, and the direction alternates."""
    start = number // 2 % len(contenders)
    order = [*contenders[start:], *contenders[:start]]
    return order[::-1] if number % 2 else order


def _entry(
    contender: Contender,
    first: Contender,
    rounds: Sequence[dict[str, RunTimes]],
    workload: Workload,
) -> Entry:
    rates = {
        name: tuple(_rate(runs[name], workload) for runs in rounds)
        for name in (contender.name, first.name)
    }
    is_first = contender is first
    return Entry(
        name=contender.name,
        bits=contender.bits,
        has_memory=contender.has_memory,
        rates=rates[contender.name],
        first=None if is_first else ratio_interval(rates[first.name], rates[contender.name]),
        same_answers=_same_answers([(runs[first.name], runs[contender.name]) for runs in rounds]),
    )


def _rate(run: RunTimes, workload: Workload) -> float:
    if workload.measures_prefill:
        return run.prefill_rate(workload.num_seqs * workload.prompt_tokens)
    return run.decode_rate()


def _same_answers(pairs: Sequence[tuple[RunTimes, RunTimes]]) -> float | None:
    told = [
        list(mine) == list(other)
        for one, two in pairs
        for mine, other in zip(one.token_ids, two.token_ids, strict=True)
        if other
    ]
    return sum(told) / len(told) if told else None
