"""Lookup: one layer's rows for one ticket, from row ids to landed rows.

A plain record plus the work itself. Who may run it, and when, is the ticket's business.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from engram_core.errors import EngramError, StateError, TierError
from engram_core.hits import HitRule, Hits
from engram_core.staging import LandedRows, RowLanding
from engram_core.stats import LookupStats, Outcome, Phase
from engram_core.store.base import Tier, TierReport
from engram_core.store.kernels import count_unique

State = Literal["pending", "running", "ready", "cancelled", "failed"]
ROW_ID_BYTES = 8

# Computes the row ids int64 [tokens, columns] of a layer.
HashLayer = Callable[[int], npt.NDArray[np.int64]]


class Lookup:
    """One layer's rows of one ticket.

    States: pending -> running -> ready | failed, or pending -> cancelled. Only the ticket moves a
    lookup out of pending, under its lock, so exactly one thread runs it.

    Attributes:
        layer: the decoder layer.
        state: see above.
        row_ids: int64 ``[tokens, columns]`` once hashed.
        hits: tokens that the hit rule lets contribute; None without a rule, or where the host
            cannot tell.
        report: what the tier did, once it did.
        error: why it failed.
    """

    def __init__(
        self,
        layer: int,
        tier: Tier,
        landing: RowLanding,
        submitted_s: float,
        rule: HitRule | None = None,
    ) -> None:
        self.layer, self.tier = layer, tier
        self.state: State = "pending"
        self.hits: Hits | None = None
        self.report: TierReport | None = None
        self._rule = rule
        self._done: threading.Event | None = None
        self._done_lock = threading.Lock()
        self.row_ids: npt.NDArray[np.int64] | None = None
        self.error: EngramError | None = None
        self.landed: LandedRows | None = None
        self.rows: torch.Tensor | None = None  # what compute took, [tokens * columns, row_dim]
        self._landing = landing
        self._submitted_s = self._ready_s = submitted_s
        self._hash_s = 0.0
        self._unique_rows = 0

    @property
    def done(self) -> threading.Event:
        """Set when the state is final. Made for those who wait: most lookups meet nobody."""
        with self._done_lock:
            if self._done is None:
                self._done = threading.Event()
                if self.state not in ("pending", "running"):
                    self._done.set()
            return self._done

    def settle(self, state: State) -> None:
        """Enter a final state."""
        with self._done_lock:
            self.state = state
            if self._done is not None:
                self._done.set()

    @property
    def is_silent(self) -> bool:
        """Whether no token of it can contribute: compute needs no rows."""
        return self.hits is not None and self.hits.number == 0

    def run(self, hash_layer: HashLayer) -> None:
        """Hash and gather; ends in ready or failed and never raises an `Exception`."""
        self.error = TierError(f"the lookup for layer {self.layer} was interrupted")
        try:
            self._run(hash_layer)
            self.error = None
        except EngramError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 (whatever a tier raises belongs to this ticket)
            self.error = TierError(f"tier {self.tier.name!r} failed for layer {self.layer}")
            self.error.__cause__ = error
        finally:
            self._ready_s = time.perf_counter()
            self.settle("ready" if self.error is None else "failed")

    def _run(self, hash_layer: HashLayer) -> None:
        started_s = time.perf_counter()
        self.row_ids = hash_layer(self.layer)
        self._hash_s = time.perf_counter() - started_s
        # the rows of one token are always distinct: every column has a range of its own
        is_one = len(self.row_ids) == 1
        flat = self.row_ids.reshape(-1)
        self._unique_rows = flat.size if is_one else count_unique(flat)
        if self._rule is not None:
            self.hits = self._rule.of_ids(self.tier, self.row_ids)
        if self.is_silent and self._landing.is_local:
            # what nobody reads is not copied; the tier told about all of these rows
            self.report = TierReport({self.tier.name: flat.size}, {self.tier.name: 0.0})
        else:
            self._land()

    def _land(self) -> None:
        if self.row_ids is None:
            raise StateError(f"the rows of layer {self.layer} were released")
        look = self._look if self._rule is not None and self.hits is None else None
        self.landed = self._landing.gather(self.tier, self.row_ids.reshape(-1), look)
        self.report = self.landed.report

    def _look(self, rows: torch.Tensor) -> None:
        if self._rule is not None:
            self.hits = self._rule.of_rows(rows)

    def has_landed(self) -> bool:
        """Whether the rows can be taken without waiting."""
        if self.landed is None:
            return self.state == "ready" and self.is_silent
        return self.state == "ready" and self.landed.has_landed()

    def take(self) -> torch.Tensor:
        """The rows ``[tokens * columns, row_dim]``, waiting for the copy; raises what failed."""
        if self.error is not None:
            raise self.error
        if self.rows is None:
            if self.landed is None and self.is_silent:
                self._land()  # somebody wants to see them after all
            if self.landed is None:
                raise StateError(f"the rows of layer {self.layer} were released")
            is_under_way = not self.landed.has_landed()
            self.rows = self._landing.take(self.landed)
            if is_under_way:
                self._ready_s = time.perf_counter()
            self.landed = LandedRows(self.rows, None, self.landed.report)  # one copy is enough
        return self.rows

    def drop(self) -> None:
        """Forget the rows; the row ids stay for reports."""
        self.landed = self.rows = self.hits = self.report = None

    def stats(
        self, phase: Phase, outcome: Outcome, orders: tuple[int, ...], wait_s: float = 0.0
    ) -> LookupStats:
        """What this lookup did, as far as it came; `wait_s` is what its first taker waited."""
        rows = 0 if self.row_ids is None else self.row_ids.size
        report = self.report
        # nothing of a lookup that compute ran itself was hidden: its duration is the wait, and
        # its time in the queue is no part of either
        exposed = outcome in ("late", "inline")
        return LookupStats(
            layer=self.layer,
            phase=phase,
            outcome=outcome,
            duration_s=wait_s if exposed else max(0.0, self._ready_s - self._submitted_s),
            hash_s=self._hash_s,
            rows=rows,
            unique_rows=self._unique_rows,
            rows_by_order={order: rows // len(orders) for order in orders},
            rows_by_tier=dict(report.rows_by_tier) if report else {},
            duration_by_tier_s=dict(report.duration_by_tier_s) if report else {},
            transferred_bytes=report.transferred_bytes if report else 0,
        )
