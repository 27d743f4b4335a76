"""ZeroFallbackTier: zero rows where another tier fails, so that its failure fails no request.

A zero row is what an unwritten row is: without biases the module then adds exactly nothing. What
was answered meanwhile was answered without the memory, so every such row is counted. Knows nothing
of why the other tier fails.
"""

from __future__ import annotations

import threading
from enum import StrEnum

import torch

from engram_core.errors import TierError
from engram_core.store.base import RowIds, Tier, TierReport

ZERO_NAME = "zero"  # label of the rows that were replaced, in statistics


class FailurePolicy(StrEnum):
    """What becomes of a request whose rows cannot be delivered."""

    FAIL = "fail"  # it fails with the tier's TierError
    OFF = "off"  # the rows read as zeros, as if they had never been written


class ZeroFallbackTier:
    """Another tier, and zeros for a whole gather that it fails with a TierError.

    Errors of the caller (a bad id, a bad output) stay errors.

    Args:
        inner: the tier that may fail.
    """

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self.name, self.is_blocking = inner.name, inner.is_blocking
        self.num_rows, self.row_dim = inner.num_rows, inner.row_dim
        self._lock = threading.Lock()
        self._zeroed_gathers = self._zeroed_rows = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the inner tier occupies."""
        return self.inner.nbytes

    @property
    def zeroed_gathers(self) -> int:
        """Gathers that the inner tier failed."""
        return self._zeroed_gathers

    @property
    def zeroed_rows(self) -> int:
        """Rows that read as zeros because of that, repeats counted."""
        return self._zeroed_rows

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows, or zeros, into `out` (see `Tier.gather`); never raises TierError."""
        try:
            return self.inner.gather(row_ids, out)
        except TierError:
            out.zero_()  # all of it: the inner tier may have written a part
        with self._lock:
            self._zeroed_gathers += 1
            self._zeroed_rows += row_ids.size
        return TierReport({ZERO_NAME: row_ids.size})


def with_policy(tier: Tier, policy: FailurePolicy) -> Tier:
    """The tier as the policy wants it."""
    return ZeroFallbackTier(tier) if policy is FailurePolicy.OFF else tier
