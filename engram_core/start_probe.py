"""The start-up measurement: seconds that a row, a hit and a hand-off cost on this machine.

The one place that looks at the clock for a decision; what follows from the figures is decided
elsewhere. One thread, about 0.2 s together, however slow the rows are: then fewer are sampled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch

from engram_core.errors import TierError
from engram_core.row_cost import RowCost
from engram_core.store.base import RowIds, Tier, TierReport
from engram_core.store.disk import DiskTier
from engram_core.store.hot_cache import HotCache

LIMIT_S = 0.2
_PIECES = 8
_PIECE_ROWS = 512  # of quick rows; enough that what a call costs whatever it reads is no row's
_LEAST_ROWS = 16
_REPEATS = 5
_HANDOFFS = 50

Clock = Callable[[], float]


def measure_rows(
    tier: Tier,
    *,
    among: RowIds | None = None,
    limit_s: float = LIMIT_S,
    clock: Clock = time.perf_counter,
    seed: int = 0,
) -> RowCost | None:
    """Gather random rows of a tier, alone and through a hot cache of their own.

    Args:
        tier: without a cache in front of it; what it counts, it counts.
        among: different rows that may be read; None: any row of the tier.
        limit_s: a third of it for rows met for the first time; a gather that was begun is ended.
        clock: in seconds.
        seed: of the sample.

    Returns:
        Medians over pieces of a sample; None where the tier fails to deliver.
    """
    try:
        sample = _sample(tier.num_rows if among is None else among.size, seed)
        sample = sample if among is None else among[sample]
        return _measure(tier, sample, limit_s / 3, clock)
    except TierError:
        return None


def measure_handoff(*, limit_s: float = LIMIT_S / 4, clock: Clock = time.perf_counter) -> float:
    """Seconds from handing work to a waiting thread until it is known to be done."""
    wake, durations = threading.Condition(), []
    inbox: list[threading.Event | None] = []
    thread = threading.Thread(target=_answer, args=(wake, inbox), name="engram-probe", daemon=True)
    thread.start()
    end_s = clock() + limit_s
    for _ in range(_HANDOFFS):
        started_s, done = clock(), threading.Event()
        _put(wake, inbox, done)
        done.wait()
        durations.append(clock() - started_s)
        if clock() > end_s:
            break
    _put(wake, inbox, None)
    thread.join()
    return median(durations)


def _measure(tier: Tier, sample: RowIds, limit_s: float, clock: Clock) -> RowCost:
    if isinstance(tier, DiskTier):
        tier.forget(sample)  # pages that the system holds by chance, or by the verification
    _gather_s(tier, sample[:1], clock)  # what only the very first gather meets is nobody's cost
    head, rest = sample[:_LEAST_ROWS], sample[_LEAST_ROWS:]
    head_s = _gather_s(tier, head, clock)
    pieces = _cut(rest if rest.size else head, head_s, limit_s)
    first = _each_once(tier, pieces, clock() + limit_s, clock)
    met = pieces[: len(first)]
    again = _repeated(tier, met, clock() + limit_s, clock)
    sampled = np.concatenate(met)
    cache = HotCache(_Sampled(tier, sampled), capacity_rows=sampled.size)
    places = np.split(np.arange(sampled.size), np.cumsum([each.size for each in met])[:-1])
    missed = _each_once(cache, places, None, clock)
    hit = _repeated(cache, places, clock() + limit_s, clock)
    return RowCost(
        rows=sampled.size,
        first_s=median(first),
        again_s=median(again),
        hit_s=median(hit),
        miss_extra_s=max(0.0, median(missed) - median(again)),
    )


def _each_once(
    tier: Tier, pieces: Sequence[RowIds], end_s: float | None, clock: Clock
) -> list[float]:
    """Seconds per row of each piece that was begun before the end, of one at least."""
    durations: list[float] = []
    for ids in pieces:
        if durations and end_s is not None and clock() > end_s:
            break
        durations.append(_gather_s(tier, ids, clock))
    return durations


def _repeated(tier: Tier, pieces: Sequence[RowIds], end_s: float, clock: Clock) -> list[float]:
    durations: list[float] = []
    for _ in range(_REPEATS):
        durations += _each_once(tier, pieces, end_s, clock)
        if clock() > end_s:
            break
    return durations


def _gather_s(tier: Tier, ids: RowIds, clock: Clock) -> float:
    """Seconds per row of one gather."""
    out = torch.empty((ids.size, tier.row_dim), dtype=torch.bfloat16)
    started_s = clock()
    tier.gather(ids, out)
    return (clock() - started_s) / ids.size


def _sample(num_rows: int, seed: int) -> RowIds:
    """Different numbers below `num_rows`, as many as rows are ever read."""
    size = min(_PIECES * _PIECE_ROWS + _LEAST_ROWS, num_rows)
    ids: RowIds = np.random.default_rng(seed).choice(num_rows, size, replace=False)
    return ids


def _cut(ids: RowIds, row_s: float, limit_s: float) -> list[RowIds]:
    """Pieces of one size, so that all of them take no longer than the limit at `row_s` a row."""
    in_time = int(limit_s / _PIECES / row_s) if row_s > 0 else _PIECE_ROWS
    size = max(_LEAST_ROWS, min(_PIECE_ROWS, in_time, ids.size // _PIECES))
    pieces = [ids[start : start + size] for start in range(0, ids.size, size)]
    return [piece for piece in pieces[:_PIECES] if piece.size == size] or [ids]


def _answer(wake: threading.Condition, inbox: list[threading.Event | None]) -> None:
    """The worker's part: waits for something to do, and says that it is done."""
    while True:
        with wake:
            while not inbox:
                wake.wait()
            done = inbox.pop()
        if done is None:
            return
        done.set()


def _put(
    wake: threading.Condition,
    inbox: list[threading.Event | None],
    done: threading.Event | None,
) -> None:
    with wake:
        inbox.append(done)
        wake.notify()


class _Sampled:
    """The sampled rows as a table of their own: a cache of it is small and not the served one."""

    def __init__(self, tier: Tier, ids: RowIds) -> None:
        self._tier, self._ids = tier, ids
        self.name, self.row_dim, self.num_rows = tier.name, tier.row_dim, ids.size
        self.nbytes, self.is_blocking = 0, tier.is_blocking

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        return self._tier.gather(self._ids[row_ids], out)
