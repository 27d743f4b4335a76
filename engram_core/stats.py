"""What the core measured, as plain data: the server turns it into metrics and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
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


@dataclass(frozen=True, slots=True)
class HotCacheStats:
    """What a hot cache did so far, and what it holds now.

    Attributes:
        hits, misses: occurrences read from slots, and the others.
        admissions, evictions: rows that entered a slot, and that left one.
        resident_rows, capacity_rows: rows in slots, and rows that fit.
        nbytes: memory of the cache alone.
    """

    hits: int = 0
    misses: int = 0
    admissions: int = 0
    evictions: int = 0
    resident_rows: int = 0
    capacity_rows: int = 0
    nbytes: int = 0

    def __add__(self, other: HotCacheStats) -> HotCacheStats:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return HotCacheStats(*(ours + theirs for ours, theirs in pairs))


@dataclass(frozen=True, slots=True)
class RowServerStats:
    """What became of the reads that were meant for one row server.

    Attributes:
        server: ``"host:port"``.
        is_open: whether its circuit breaker turns reads away, but for a probe.
        attempts: reads that were sent, first ones and repeated ones.
        failures: those that brought no rows. retries: those that repeated a failed one.
        turned_away: reads that the breaker failed without asking.
    """

    server: str
    is_open: bool = False
    attempts: int = 0
    failures: int = 0
    retries: int = 0
    turned_away: int = 0

    def __add__(self, other: RowServerStats) -> RowServerStats:
        return RowServerStats(
            self.server,
            self.is_open or other.is_open,
            self.attempts + other.attempts,
            self.failures + other.failures,
            self.retries + other.retries,
            self.turned_away + other.turned_away,
        )


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """What the tiers of one memory counted.

    Attributes:
        hot_caches: by layer and the cache's tier name, ``"hot"`` or ``"device"``.
        row_servers: by address.
    """

    hot_caches: Mapping[tuple[int, str], HotCacheStats] = field(default_factory=dict)
    row_servers: Mapping[str, RowServerStats] = field(default_factory=dict)
