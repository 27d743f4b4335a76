"""What was measured of one backing in one dtype, and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.bootstrap import RatioInterval
from benchmarks.report import table
from benchmarks.three_arm.measure import Series

HEADER = [
    "tables", "arm", "compute", "end to end ms", "lookup ms", "exposed ms", "hit rate", "hidden",
    "arm 0 / it", "95 % interval", "exposed: 0 / it",
]  # fmt: skip

_MANY = 1000  # beyond this the clock's own time is compared


@dataclass(frozen=True, slots=True)
class Result:
    """One backing in one dtype.

    Attributes:
        backing: its name. dtypes: of each arm's compute. series: of each arm, arm 0 first.
        why_auto: what the server's own choice was, in its words.
        resident: the largest share of a table's pages in the system's cache, before and after
            any turn; None where no files are read.
        sentences: what else has to be said.
    """

    backing: str
    dtypes: Mapping[str, str]
    series: Mapping[str, Series]
    why_auto: str
    resident: tuple[float, float] | None
    sentences: tuple[str, ...] = ()

    def with_sentence(self, sentence: str) -> Result:
        """The same with one more thing to say."""
        return replace(self, sentences=(*self.sentences, sentence))

    def lines(self) -> list[list[str]]:
        """Its lines of the table."""
        first = next(iter(self.series.values()))
        return [
            [self.backing, name, self.dtypes[name], *_figures(each), *_ratios(each, first)]
            for name, each in self.series.items()
        ]

    def notes(self) -> list[str]:
        """What belongs under the table."""
        notes = [f"{self.backing}: auto chose {self.why_auto}", *self.sentences]
        if self.resident is not None:
            before, after = self.resident
            notes.append(
                f"{self.backing}: at most {before:.2%} of a table lay in the page cache before a "
                f"turn and {after:.2%} after it (mincore)"
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {
            "backing": self.backing,
            "dtypes": dict(self.dtypes),
            "series": {name: each.to_dict() for name, each in self.series.items()},
            "why_auto": self.why_auto,
            "resident": self.resident,
            "notes": self.notes(),
        }


def render(results: Sequence[Result]) -> str:
    """The table of docs/benchmarks.md, with what belongs under it."""
    lines = [line for result in results for line in result.lines()]
    notes = dict.fromkeys(note for result in results for note in result.notes())
    return "\n".join([table(HEADER, lines), "", *notes])


def _figures(series: Series) -> list[str]:
    return [
        f"{1e3 * median(series.total_s):.1f}",
        f"{1e3 * median(series.lookup_s):.1f}",
        f"{1e3 * median(series.exposed_s):.2f}",
        f"{series.hit_rate:.1%}" if series.hits else "",
        f"{series.hidden:.0%}",
    ]


def _ratios(series: Series, first: Series) -> list[str]:
    if series is first:
        return ["", "", ""]
    ratio, exposed = series.faster(first), series.less_exposed(first)
    times = f"{exposed.ratio:.1f}" if exposed.ratio < _MANY else f"> {_MANY}"
    return [f"{ratio.ratio:.2f}", _interval(ratio), times]


def _interval(found: RatioInterval) -> str:
    return f"{found.low:.2f} to {found.high:.2f}"
