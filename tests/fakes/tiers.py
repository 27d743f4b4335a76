"""Tiers that are slow, held back or broken, around a real one."""

from __future__ import annotations

import threading
import time

from engram_core.errors import TierError


class WrappedTier:
    """A tier that hands everything to another one; the fakes below bend one method."""

    is_blocking = False

    def __init__(self, inner):
        self.inner = inner
        self.gathers = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def gather(self, row_ids, out):
        self.gathers += 1
        return self.inner.gather(row_ids, out)


class DelayedTier(WrappedTier):
    """Sleeps before every gather, as a disk or a network would."""

    is_blocking = True

    def __init__(self, inner, delay_s):
        super().__init__(inner)
        self.delay_s = delay_s

    def gather(self, row_ids, out):
        time.sleep(self.delay_s)
        return super().gather(row_ids, out)


class HeldTier(WrappedTier):
    """Stops in a gather until it is let go; `entered` says that somebody is in there."""

    is_blocking = True

    def __init__(self, inner):
        super().__init__(inner)
        self.entered, self.let_go = threading.Event(), threading.Event()

    def gather(self, row_ids, out):
        self.entered.set()
        assert self.let_go.wait(60), "nobody let the tier go"
        return super().gather(row_ids, out)


class FaultyTier(WrappedTier):
    """Raises `error` while `broken` is set."""

    def __init__(self, inner, error=None):
        super().__init__(inner)
        self.broken = True
        self.error = error or TierError("the rows are out of reach")

    def gather(self, row_ids, out):
        if self.broken:
            raise self.error
        return super().gather(row_ids, out)
