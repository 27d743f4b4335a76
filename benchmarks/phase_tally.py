"""PhaseTally: what the lookups of one phase (prefill or decode) did, added up over steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from engram_core.stats import LookupStats

Amounts = dict[str, float]


@dataclass(slots=True)
class PhaseTally:
    """Sums; JSON-ready by `to_dict`.

    Attributes:
        steps: engine steps that had such lookups.
        rows_by_tier: rows delivered, by the tier that did; each occurrence counts once.
        seconds_by_tier: time that the tiers took, in seconds, whoever waited for it.
        outcomes: lookups by outcome (`engram_core.stats`).
        wait_s: how long compute waited for rows, in seconds.
        transferred_bytes: what crossed the border of a disk, a device or a network.
    """

    steps: int = 0
    rows_by_tier: Amounts = field(default_factory=dict)
    seconds_by_tier: Amounts = field(default_factory=dict)
    outcomes: Amounts = field(default_factory=dict)
    wait_s: float = 0.0
    transferred_bytes: int = 0

    @property
    def rows(self) -> float:
        """Rows of all tiers."""
        return sum(self.rows_by_tier.values())

    def share(self, tier: str) -> float:
        """The share of the rows that this tier delivered; 0 where there were none."""
        return self.rows_by_tier.get(tier, 0) / self.rows if self.rows else 0.0

    def add_lookup(self, stats: LookupStats) -> None:
        """Add one layer's lookup."""
        _add(self.rows_by_tier, stats.rows_by_tier)
        _add(self.seconds_by_tier, stats.duration_by_tier_s)
        _add(self.outcomes, {stats.outcome: 1})
        self.transferred_bytes += stats.transferred_bytes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def sum_of(cls, tallies: Iterable[PhaseTally]) -> Self:
        """All of them together."""
        total = cls()
        for each in tallies:
            total.steps += each.steps
            total.wait_s += each.wait_s
            total.transferred_bytes += each.transferred_bytes
            for name in ("rows_by_tier", "seconds_by_tier", "outcomes"):
                _add(getattr(total, name), getattr(each, name))
        return total


def _add(total: Amounts, amounts: Mapping[str, float]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount
