"""What the core measured, as plain data: the server turns it into metrics and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["prefill", "decode"]
Outcome = Literal["hidden", "partial", "late", "cancelled", "inline"]


@dataclass(frozen=True, slots=True)
class LookupStats:
    """One finished lookup: the rows of one ticket for one layer.

    ``duration_s`` runs from submit to ready (queueing included) when a worker did the lookup. The
    whole duration of an inline or late one, its own work alone, is also its exposed wait: nothing
    of it was hidden. A cancelled one counts the rows it had hashed, possibly none. ``outcome`` is
    decided when the layer first takes the rows: hidden (ready before it was asked for), partial
    (started, waited for the rest), late (not yet started: looked up by the waiting thread), inline
    (never handed to a worker), cancelled.
    """

    layer: int
    phase: Phase
    outcome: Outcome
    duration_s: float
    hash_s: float
    rows: int
    unique_rows: int
    rows_by_order: dict[int, int] = field(default_factory=dict)
    rows_by_tier: dict[str, int] = field(default_factory=dict)
    duration_by_tier_s: dict[str, float] = field(default_factory=dict)
    transferred_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AuditStats:
    """Rows that were looked up again: as compute got them, otherwise, or not to be had."""

    match: int = 0
    mismatch: int = 0
    unread: int = 0

    def __add__(self, other: AuditStats) -> AuditStats:
        return AuditStats(
            self.match + other.match, self.mismatch + other.mismatch, self.unread + other.unread
        )


@dataclass(frozen=True, slots=True)
class WaitStats:
    """How long compute really waited at one layer in one step (zeros are recorded too)."""

    layer: int
    phase: Phase
    wait_s: float
