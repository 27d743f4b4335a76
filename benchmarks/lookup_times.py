"""What an engine's lookups cost and how much of that compute waited for, summed by phase."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engram_core.stats import Phase
from server.engine.types import NullRecorder, StepStats


class LookupTimes(NullRecorder):
    """A recorder; `summary` after the engine has stopped."""

    def __init__(self) -> None:
        self._lookup_s: Counter[Phase] = Counter()
        self._wait_s: Counter[Phase] = Counter()
        self._count: Counter[Phase] = Counter()

    def record_step(self, stats: StepStats) -> None:
        """Add a step's lookups and waits."""
        for lookup in stats.lookups:
            self._count[lookup.phase] += 1
            self._lookup_s[lookup.phase] += lookup.duration_s  # type: ignore[assignment]
        for wait in stats.waits:
            self._wait_s[wait.phase] += wait.wait_s  # type: ignore[assignment]

    def summary(self, phase: Phase) -> dict[str, Any] | None:
        """Lookups, milliseconds of lookup and of exposed wait, hidden fraction; None without any.

        A lookup's time runs from its request to its rows on the device, queueing included.
        """
        lookup_s, wait_s = self._lookup_s[phase], self._wait_s[phase]
        if not self._count[phase] or lookup_s <= 0:
            return None
        return {
            "phase": phase,
            "lookups": self._count[phase],
            "lookup_ms": 1e3 * lookup_s,
            "exposed_wait_ms": 1e3 * wait_s,
            "hidden_fraction": max(0.0, 1 - wait_s / lookup_s),
        }
