"""Tier: where the rows of one layer's table live, behind one method.

Knows nothing about hashing, layers or threads. Tiers compose: an outer tier answers what it holds
and asks an inner one for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

RowIds = npt.NDArray[np.int64]

# What a gather may write: bf16 is what a row is, float32 is the same value upcast.
OUTPUT_DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class TierReport:
    """What one gather did.

    Attributes:
        rows_by_tier: rows that each tier delivered, by its name.
        duration_by_tier_s: seconds that each tier took.
        transferred_bytes: bytes that crossed a device, disk or network border.
    """

    rows_by_tier: Mapping[str, int] = field(default_factory=dict)
    duration_by_tier_s: Mapping[str, float] = field(default_factory=dict)
    transferred_bytes: int = 0


class Tier(Protocol):
    """The rows of one layer's table.

    A row's value is defined once, as bf16(payload x scale): every tier returns those bits, whatever
    it stores. Tiers are immutable and may be read by several threads at once.
    """

    @property
    def name(self) -> str:
        """Label of this tier in statistics, for example ``"host"``."""

    @property
    def num_rows(self) -> int:
        """Rows of the table; accepted ids are ``0 <= id < num_rows``."""

    @property
    def row_dim(self) -> int:
        """Values in a row."""

    @property
    def nbytes(self) -> int:
        """Bytes that this tier occupies."""

    @property
    def is_blocking(self) -> bool:
        """True when a gather waits for I/O (disk, network): a worker should do it."""

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` into `out`.

        Args:
            row_ids: int64 ``[n]``, repeats allowed.
            out: contiguous host tensor ``[n, row_dim]``, bf16 or float32.

        Raises:
            IdRangeError: an id is negative or not below `num_rows`; `out` is then untouched.
            ConfigError: `out` has another shape, dtype or place.
            TierError: the rows could not be delivered.
        """
