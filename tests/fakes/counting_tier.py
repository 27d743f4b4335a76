"""A tier that counts the fetches of every row, in all and at the same moment."""

from __future__ import annotations

import threading
import time

import numpy as np

from engram_core.errors import TierError
from fakes.tiers import WrappedTier


class CountingTier(WrappedTier):
    """Takes `delay_s` per gather and breaks every `break_every`-th one halfway (0: none)."""

    is_blocking = True

    def __init__(self, inner, *, delay_s=0.0, break_every=0):
        super().__init__(inner)
        self.delay_s, self.break_every = delay_s, break_every
        self.fetches = np.zeros(inner.num_rows, dtype=np.int64)
        self.under_way = np.zeros(inner.num_rows, dtype=np.int64)
        self.doubled = self.repeated = self.broken = 0
        self._lock = threading.Lock()

    def gather(self, row_ids, out):
        with self._lock:
            self.gathers += 1
            is_broken = self.break_every > 0 and self.gathers % self.break_every == 0
            self.broken += is_broken
            self.repeated += row_ids.size - np.unique(row_ids).size
            self.doubled += int(np.count_nonzero(self.under_way[row_ids]))
            self.under_way[row_ids] += 1
            self.fetches[row_ids] += 1
        try:
            out.fill_(float("nan"))  # whoever reads too early reads this
            time.sleep(self.delay_s)
            if is_broken:
                raise TierError("the rows are out of reach")
            return self.inner.gather(row_ids, out)
        finally:
            with self._lock:
                self.under_way[row_ids] -= 1
