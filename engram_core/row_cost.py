"""RowCost: what a row of a memory costs, as measured at start. Plain data; measures nothing."""

from __future__ import annotations

from dataclasses import dataclass

_US = 1e6


@dataclass(frozen=True, slots=True)
class RowCost:
    """Seconds per row of one tier, which is asked for up to some hundreds at once.

    Attributes:
        rows: sampled rows.
        first_s: a row that is read for the first time since start. On an SSD its page is dropped
            from the system's cache before.
        again_s: the same row, read again.
        hit_s: a row that lies in a hot cache in front of the tier.
        miss_extra_s: what the cache adds to a row that it lacks.
    """

    rows: int
    first_s: float
    again_s: float
    hit_s: float
    miss_extra_s: float

    def cached_s(self, hit_rate: float) -> float:
        """Seconds per row behind a cache that has this share of them."""
        return hit_rate * self.hit_s + (1 - hit_rate) * (self.first_s + self.miss_extra_s)

    def __str__(self) -> str:
        return (
            f"{self.rows} random rows took {in_us(self.first_s)} each "
            f"({_per_second(self.first_s)} rows/s) and {in_us(self.again_s)} again"
        )


def in_us(seconds: float) -> str:
    """For people: microseconds with three digits that matter."""
    return f"{seconds * _US:.3g} us"


def _per_second(seconds: float) -> str:
    """Rows in a second with three digits that matter."""
    return f"{float(f'{1 / seconds:.3g}'):,.0f}" if seconds > 0 else "countless"
