"""Ticket: the rows of one span of tokens, for all Engram layers.

A layer takes its rows here: ready ones at once, running ones after a wait, and those that nobody
has started by looking them up itself, so a ticket can never deadlock. Knows no threads by name and
no budget; whoever made it hears when it is closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engram_core.errors import ConfigError, StateError
from engram_core.hits import Hits
from engram_core.lookup import ROW_ID_BYTES, Lookup
from engram_core.memory import Int64Array, Memory
from engram_core.staging import RowLanding
from engram_core.stats import LookupStats, Outcome, Phase

# Computes the windows int64 [tokens, N], once.
MakeWindows = Callable[[], Int64Array]


class Taken(NamedTuple):
    """What a layer gets from a ticket."""

    rows: torch.Tensor | None  # [num_tokens, row_width]; None when no token can contribute
    hits: Hits | None  # tokens that can; None without a hit rule, or where the host cannot tell
    wait_s: float


class Ticket:
    """Rows of `num_tokens` tokens in every Engram layer. Made by a `Prefetcher`.

    Holds the rows of the served orders alone, side by side (see `ServedOrders.widen`).

    Holds a reference to its memory until it is released and nothing of it runs any more.

    Attributes:
        num_tokens: tokens covered.
        phase: ``"prefill"`` (a prompt) or ``"decode"`` (one token of each of several sequences).
        version_id: the memory it reads.
        handed_off: whether a worker was asked to look ahead.
        reserved_bytes: staging bytes taken from the worker's budget.
    """

    def __init__(
        self,
        memory: Memory,
        phase: Phase,
        num_tokens: int,
        make_windows: MakeWindows,
        landing: RowLanding,
        *,
        handed_off: bool,
        on_closed: Callable[[Ticket], None],
    ) -> None:
        self.num_tokens, self.phase = num_tokens, phase
        self.version_id = memory.id
        self.handed_off = handed_off
        self.reserved_bytes = 0
        self._memory = memory
        self._orders = memory.served.orders
        self._windows = _Once(make_windows)
        submitted_s = time.perf_counter()
        self._lookups = {
            layer: Lookup(layer, memory.tiers[layer], landing, submitted_s, memory.hit_rule)
            for layer in memory.layer_ids
        }
        value_bytes = landing.dtype.itemsize * memory.config.head_dim
        self._lookup_bytes = num_tokens * memory.served.num_columns * (value_bytes + ROW_ID_BYTES)
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._running = 0
        self._released = False
        self._taken: set[int] = set()
        self._stats: list[LookupStats] = []
        memory.acquire()

    @property
    def lookups(self) -> Sequence[Lookup]:
        """Its lookups in layer order, for whoever runs them."""
        return tuple(self._lookups.values())

    @property
    def lookup_bytes(self) -> int:
        """Bytes that each of its lookups occupies until the release."""
        return self._lookup_bytes

    def rows(self, layer: int) -> tuple[torch.Tensor, float]:
        """The rows of `layer` ``[num_tokens, row_width]`` on the device, and the seconds waited.

        Raises:
            TierError, IdRangeError: this ticket's lookup failed.
            StateError: the ticket was released. ConfigError: `layer` has no Engram.
        """
        rows, _, wait_s = self.take(layer)
        if rows is None:
            rows = self._lookup(layer).take().view(self.num_tokens, -1)
        return rows, wait_s

    def take(self, layer: int) -> Taken:
        """`rows` for compute, which needs none of a layer where no token can contribute."""
        lookup = self._lookup(layer)
        if layer in self._taken and lookup.rows is not None:
            return Taken(lookup.rows.view(self.num_tokens, -1), lookup.hits, 0.0)
        entered_s = time.perf_counter()
        outcome = self._finish_lookup(lookup)
        self._refuse_released()
        rows = None
        if lookup.error is not None or not lookup.is_silent:
            rows = lookup.take().view(self.num_tokens, -1)  # [tokens, row_width]
        wait_s = 0.0 if outcome == "hidden" else time.perf_counter() - entered_s
        self._note_taken(lookup, outcome, wait_s)
        return Taken(rows, lookup.hits, wait_s)

    def is_ready(self, layer: int) -> bool:
        """Whether `rows(layer)` would return without waiting or computing."""
        return self._lookup(layer).has_landed()

    def can_tell(self, layer: int) -> bool:
        """Whether `take` would neither wait nor do what a worker is about to do."""
        lookup = self._lookup(layer)
        return lookup.has_landed() or (lookup.state == "pending" and not self.handed_off)

    def row_ids(self, layer: int) -> npt.NDArray[np.int64]:
        """Absolute rows that each token reads in `layer`: int64 ``[num_tokens, columns]``."""
        row_ids = self._lookup(layer).row_ids
        return self._hash_layer(layer) if row_ids is None else row_ids

    def tiers(self, layer: int) -> tuple[str, ...]:
        """Names of the tiers that delivered rows of `layer`; empty while they are on their way."""
        report = self._lookup(layer).report
        return tuple(report.rows_by_tier) if report is not None else ()

    def start(self, lookup: Lookup) -> bool:
        """Move a pending lookup to running for the caller, who must then call `run`."""
        with self._lock:
            if lookup.state != "pending" or self._released:
                return False
            lookup.state = "running"
            self._running += 1
            return True

    def run(self, lookup: Lookup) -> None:
        """Do a started lookup on the calling thread."""
        try:
            lookup.run(self._hash_layer)
        finally:
            self._settle()

    def release(self) -> None:
        """Give up rows, staging and the memory; idempotent, from any thread.

        What no layer has taken counts as cancelled. A running lookup finishes and is dropped;
        the ticket stays open until then.
        """
        with self._lock:
            if self._released:
                return
            self._released = True
            for lookup in self._lookups.values():
                self._abandon(lookup)
            self._running += 1  # keeps a lookup that finishes just now from closing us twice
        self._settle()

    def cancel(self) -> None:
        """`release` under the name that says the rows were never wanted."""
        self.release()

    def drain_stats(self) -> list[LookupStats]:
        """Lookups that were taken or cancelled since the last call; each is reported once."""
        with self._lock:
            drained, self._stats = self._stats, []
            return drained

    def _lookup(self, layer: int) -> Lookup:
        lookup = self._lookups.get(layer)
        if lookup is None:
            raise ConfigError(f"layer {layer} has no Engram; accepted: {sorted(self._lookups)}")
        return lookup

    def _hash_layer(self, layer: int) -> npt.NDArray[np.int64]:
        return self._memory.hasher.window_rows(self._windows.get(), layer)

    def _finish_lookup(self, lookup: Lookup) -> Outcome:
        """Bring the lookup to its end, by waiting or by doing it here."""
        if self.start(lookup):
            self.run(lookup)
            return "late" if self.handed_off else "inline"
        if lookup.has_landed():
            return "hidden"
        lookup.done.wait()
        return "partial"

    def _refuse_released(self) -> None:
        if self._released:
            raise StateError("the ticket was released; its rows are gone")

    def _note_taken(self, lookup: Lookup, outcome: Outcome, wait_s: float) -> None:
        with self._lock:
            if lookup.layer in self._taken or self._released:
                return
            self._taken.add(lookup.layer)
            self._stats.append(lookup.stats(self.phase, outcome, self._orders, wait_s))

    def _abandon(self, lookup: Lookup) -> None:
        if lookup.layer not in self._taken and lookup.state != "failed":
            self._stats.append(lookup.stats(self.phase, "cancelled", self._orders))
        if lookup.state == "pending":
            lookup.settle("cancelled")

    def _settle(self) -> None:
        with self._lock:
            self._running -= 1
            closing = self._released and self._running == 0
        if closing:
            for lookup in self._lookups.values():
                lookup.drop()
            self._on_closed(self)
            self._memory.release()


class _Once:
    """A value computed by whichever thread asks first; a failure is met by every asker."""

    def __init__(self, make: MakeWindows) -> None:
        self._make = make
        self._value: Int64Array | None = None
        self._lock = threading.Lock()

    def get(self) -> Int64Array:
        with self._lock:
            if self._value is None:
                self._value = self._make()
            return self._value
