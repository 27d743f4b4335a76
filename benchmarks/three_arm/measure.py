"""Runs arms in alternating rounds over the same stream of requests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from benchmarks.bootstrap import RatioInterval, ratio_interval
from benchmarks.comparison import turn
from benchmarks.documents import TokenRequests
from benchmarks.three_arm.arm import Arm, RequestCost

_TICK_S = 1e-6  # what a wait of nothing counts as in a ratio


@dataclass(slots=True)
class Series:
    """What one arm's counted requests cost, round by round (means over a round's requests).

    Attributes:
        total_s, lookup_s, exposed_s: see `RequestCost` and `LookupCost`.
        rows, hits: of all rounds together.
    """

    total_s: list[float] = field(default_factory=list)
    lookup_s: list[float] = field(default_factory=list)
    exposed_s: list[float] = field(default_factory=list)
    rows: int = 0
    hits: int = 0

    def add(self, costs: Sequence[RequestCost]) -> None:
        """Take one round."""
        self.total_s.append(fmean(cost.total_s for cost in costs))
        self.lookup_s.append(fmean(cost.lookup.lookup_s for cost in costs))
        self.exposed_s.append(fmean(cost.lookup.exposed_s for cost in costs))
        self.rows += sum(cost.lookup.rows for cost in costs)
        self.hits += sum(cost.lookup.hits for cost in costs)

    @property
    def hit_rate(self) -> float:
        """Share of the rows that came out of a hot cache."""
        return self.hits / self.rows if self.rows else 0.0

    @property
    def hidden(self) -> float:
        """Share of the lookup's time that compute did not wait for."""
        return max(0.0, 1 - median(self.exposed_s) / median(self.lookup_s))

    def faster(self, first: Series) -> RatioInterval:
        """How many times `first`'s end-to-end time is this one's."""
        return ratio_interval(first.total_s, self.total_s)

    def less_exposed(self, first: Series) -> RatioInterval:
        """How many times `first`'s exposed wait is this one's."""
        waits = ([max(wait, _TICK_S) for wait in each.exposed_s] for each in (first, self))
        return ratio_interval(*waits)

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {
            "total_s": self.total_s,
            "lookup_s": self.lookup_s,
            "exposed_s": self.exposed_s,
            "rows": self.rows,
            "hits": self.hits,
        }


@dataclass(frozen=True, slots=True)
class Rounds:
    """How long to measure.

    Attributes:
        number: counted rounds. requests: counted requests of each arm in a round; one more, whose
            lookup nobody's computing could hide, goes before them.
    """

    number: int
    requests: int

    @property
    def num_requests(self) -> int:
        """Requests that are taken altogether, one uncounted round included."""
        return (self.number + 1) * (self.requests + 1)


def measure(
    arms: Sequence[Arm], source: TokenRequests, rounds: Rounds, chill: Callable[[], None]
) -> dict[str, Series]:
    """Every arm's costs by its name. Within a round all arms serve the same requests.

    Args:
        arms: the first is what the others are compared with.
        source: of requests, fresh ones every round.
        rounds: how many.
        chill: called before each arm's turn.
    """
    found = {arm.name: Series() for arm in arms}
    for number in range(-1, rounds.number):
        requests = source.take(rounds.requests + 1)
        for arm in turn(arms, number):
            chill()
            costs = arm.run(requests)[1:]
            if number >= 0:
                found[arm.name].add(costs)
        print(f"round {number + 1} of {rounds.number}", file=sys.stderr, end="\r", flush=True)
    print(file=sys.stderr)
    return found
