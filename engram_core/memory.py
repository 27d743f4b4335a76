"""Memory: what a lookup needs of a memory version, as a protocol.

Keeps the prefetcher independent of modules and of how a version is assembled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engram_core.config import EngramConfig
from engram_core.hits import HitRule
from engram_core.inline_limit import InlineLimit
from engram_core.served_orders import ServedOrders
from engram_core.store.base import Tier

Int64Array = npt.NDArray[np.int64]


class Hasher(Protocol):
    """Tokens to rows; `engram_core.hashing.NgramHasher` is the real one."""

    def windows(self, token_ids: Any, history: Any | None = None) -> Int64Array:
        """Classes that each token's n-grams see: int64 ``[tokens, N]``."""

    def window_rows(self, windows: Int64Array, layer: int) -> Int64Array:
        """Absolute rows of the served orders: int64 ``[tokens, columns]``."""


class Memory(Protocol):
    """An immutable memory that is held while its rows are being read."""

    @property
    def id(self) -> str:
        """Name derived from content."""

    @property
    def config(self) -> EngramConfig:
        """The algorithm's constants."""

    @property
    def served(self) -> ServedOrders:
        """The n-gram orders that are read."""

    @property
    def hit_rule(self) -> HitRule | None:
        """Which tokens can contribute; None when all can."""

    @property
    def inline_limit(self) -> InlineLimit | None:
        """How large a decode step may be for its layer to look it up; None: as for any memory."""

    @property
    def hasher(self) -> Hasher:
        """Tokens to rows."""

    @property
    def tiers(self) -> Mapping[int, Tier]:
        """The table of each Engram layer."""

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Engram layers in the order compute meets them."""

    def acquire(self) -> object:
        """Add a holder."""

    def release(self) -> None:
        """Give a reference back."""
