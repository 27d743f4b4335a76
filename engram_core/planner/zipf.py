"""ZipfAccess: rows read as often as Zipf's law says, for tables of any size.

The row of rank r in a column is read in proportion to r**-exponent. Sums over ranks are exact for
the first few hundred and Euler-Maclaurin's formula beyond, so a table of 1e11 rows costs nothing.

A cache does not know the law: it has counted the reads of late, and rows that were read as often by
chance look alike to it. So it keeps the rows with the highest Poisson counts in a window, which
answers up to ten points fewer reads than the hottest rows would.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from engram_core.planner.shape import MemoryShape
from engram_core.planner.validation import require_number

MAX_EXPONENT = 4.0
_EXACT = 256  # ranks summed one by one: the formula's next term is below 1e-15 from here on
_GROWTH = 0.01  # ranks beyond are taken together where they differ by so much
# reads per slot that a counter remembers: halved once in 4, it fades to 4 + 2 + 1 ... less what
# halving rounds off
_WINDOW = 6.0

FloatArray = npt.NDArray[np.float64]


class ZipfAccess:
    """Every column of `shape` is read by Zipf's law with the same exponent.

    A column is one head of one order in one layer: each token reads one of its rows, so all
    columns are equally busy and the hottest rows of the memory are the hottest of each column.

    Raises:
        ConfigError: the exponent lies outside 0 (all rows alike) to 4.
    """

    def __init__(self, shape: MemoryShape, exponent: float) -> None:
        require_number("zipf", exponent, 0, MAX_EXPONENT)
        self.exponent = float(exponent)
        self._columns = shape.rows_per_token
        self._column_rows = shape.total_rows / self._columns
        terms = (_power(rank, self.exponent) for rank in range(1, _EXACT + 1))
        self._sums = [0.0, *accumulate(terms)]
        self._counts, self._reads = self._groups()

    def share(self, rows: float) -> float:
        """See `AccessPattern.share`."""
        per_column = max(rows / self._columns, 0.0)
        if per_column >= self._column_rows:
            return 1.0
        return _counted_hits(self._counts, self._reads, per_column)

    def to_dict(self) -> dict[str, Any]:
        """The exponent and the ranks of a column."""
        return {"pattern": "zipf", "exponent": self.exponent, "ranks": round(self._column_rows)}

    def _groups(self) -> tuple[FloatArray, FloatArray]:
        """Ranks that are read about alike: their numbers, and their shares of the reads."""
        first = np.arange(min(_EXACT, math.floor(self._column_rows)) + 1, dtype=np.float64)
        steps = math.ceil(math.log(max(1.0, self._column_rows / first[-1])) / _GROWTH)
        rest = np.geomspace(first[-1], self._column_rows, steps + 1)[1:]
        edges = np.unique(np.concatenate([first, np.floor(rest[:-1]), [self._column_rows]]))
        sums = np.array([self._up_to(edge) for edge in edges])
        return np.diff(edges), np.maximum(np.diff(sums), 0.0) / sums[-1]

    def _up_to(self, ranks: float) -> float:
        """Sum of r**-exponent for r = 1 .. ranks; linear between whole numbers."""
        whole = math.floor(ranks)
        below = self.harmonic(whole)
        return below + (ranks - whole) * _power(whole + 1, self.exponent)

    def harmonic(self, ranks: int) -> float:
        """Generalised harmonic number: the sum of r**-exponent for r = 1 .. ranks."""
        if ranks <= _EXACT:
            return self._sums[ranks]
        return self._sums[_EXACT] + self._tail(float(_EXACT), float(ranks))

    def _tail(self, start: float, end: float) -> float:
        """Sum of r**-exponent for r = start + 1 .. end (Euler-Maclaurin, two derivatives)."""
        s = self.exponent
        span = math.log(end / start)
        integral = span if s == 1 else _power(start, s - 1) * math.expm1((1 - s) * span) / (1 - s)
        ends = (_power(end, s) - _power(start, s)) / 2
        first = -s * (_power(end, s + 1) - _power(start, s + 1)) / 12
        third = s * (s + 1) * (s + 2) * (_power(end, s + 3) - _power(start, s + 3)) / 720
        return integral + ends + first + third


def _power(rank: float, exponent: float) -> float:
    return math.pow(rank, -exponent)


def _counted_hits(counts: FloatArray, reads: FloatArray, slots: float) -> float:
    """Share of reads of the `slots` rows that were read most often in a window.

    `counts` rows of a group have `reads` of all reads. Ties among the rows that were read equally
    often are cut by chance.
    """
    means = _WINDOW * slots * reads / counts  # of a row's reads in the window
    term = np.exp(-means)  # Poisson: read 0 times
    kept, least = np.ones_like(means), 0  # read at least 0 times
    while True:
        least += 1
        fewer = np.maximum(0.0, kept - term)
        held = float(counts @ fewer)
        if held <= slots:
            break
        kept, term = fewer, term * means / least
    part = (slots - held) / max(float(counts @ kept) - held, slots * 1e-12)
    return min(1.0, float(reads @ (fewer + part * (kept - fewer))))
