"""Counts what an engine's lookups did, by phase: rows by tier, outcomes and exposed waits."""

from __future__ import annotations

import threading

from benchmarks.phase_tally import PhaseTally
from engram_core.stats import Phase
from server.engine.types import NullRecorder, StepStats


class LookupTally(NullRecorder):
    """A recorder; `take` from another thread gives what came since it was last called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[Phase, PhaseTally] = {}

    def record_step(self, stats: StepStats) -> None:
        """Add a step's lookups and waits."""
        with self._lock:
            for lookup in stats.lookups:
                self._of(lookup.phase).add_lookup(lookup)
            for wait in stats.waits:
                self._of(wait.phase).wait_s += wait.wait_s
            for phase in {wait.phase for wait in stats.waits}:
                self._of(phase).steps += 1

    def take(self) -> dict[Phase, PhaseTally]:
        """What was counted, by phase; counting starts again."""
        with self._lock:
            taken, self._tallies = self._tallies, {}
            return taken

    def _of(self, phase: Phase) -> PhaseTally:
        return self._tallies.setdefault(phase, PhaseTally())
