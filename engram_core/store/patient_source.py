"""PatientRowSource: a row source that is asked again, and left alone while it keeps failing.

Each server has its own attempts and its own circuit breaker, so that one that fails is known by
its name and costs the others nothing. Knows no protocol and no other sources.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from engram_core.errors import ConfigError, TierError, TierRefusedError, TierUnreachableError
from engram_core.stats import RowServerStats
from engram_core.store.base import RowIds
from engram_core.store.circuit_breaker import BreakerState, CircuitBreaker
from engram_core.store.row_source import RowSource, RowSourceDescription, RowWords


class PatientRowSource:
    """Another source, with timeouts, attempts and a breaker. Thread-safe.

    Failed attempts are repeated at once: the pause that helps a source that is down is the
    breaker's.

    Args:
        source: who is asked; closed with this.
        timeout_s: seconds that one attempt may take, however many rows it reads.
        retries: attempts after the first; a refusal is never repeated.
        breaker: default: one of its own.
        label: the source in statistics; its name unless given.

    Attributes:
        name: the source's. longest_s: seconds that a read may take in all.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        timeout_s: float = 1.0,
        retries: int = 1,
        breaker: CircuitBreaker | None = None,
        label: str | None = None,
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s is {timeout_s}; accepted: a number > 0")
        if retries < 0:
            raise ConfigError(f"retries is {retries}; accepted: a number >= 0")
        self.name = source.name
        self.longest_s = timeout_s * (retries + 1)
        self._source, self._timeout_s, self._retries = source, timeout_s, retries
        self._breaker = breaker or CircuitBreaker()
        self._stats = RowServerStats(label or source.name)
        self._lock = threading.Lock()

    @property
    def breaker_state(self) -> BreakerState:
        """What the breaker would do with a read now."""
        return self._breaker.state

    def stats(self) -> RowServerStats:
        """What became of the reads so far, and whether the breaker lets them through."""
        with self._lock:
            return replace(self._stats, is_open=self._breaker.state != "closed")

    def describe(self, timeout_s: float) -> RowSourceDescription:
        """What the source has, asked once (see `RowSource.describe`)."""
        return self._source.describe(timeout_s)

    def read_rows(self, table: str, row_ids: RowIds, timeout_s: float) -> RowWords:
        """The rows ``[n, row_dim]``, in at most `timeout_s` and the allowed attempts.

        Raises:
            TierTimeoutError, TierUnreachableError, TierRefusedError: see `RowSource.read_rows`;
                unreachable also while the breaker is open.
        """
        deadline_s = time.monotonic() + timeout_s
        failure: TierError | None = None
        for attempt in range(self._retries + 1):
            left_s = min(self._timeout_s, deadline_s - time.monotonic())
            if (failure is not None and left_s <= 0) or not self._breaker.admit():
                break
            self._count(attempts=1, retries=min(attempt, 1))
            try:
                return self._attempt(table, row_ids, left_s)
            except TierRefusedError:
                raise
            except TierError as error:
                failure = error
        raise failure or self._turn_away()

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _attempt(self, table: str, row_ids: RowIds, timeout_s: float) -> RowWords:
        try:
            words = self._source.read_rows(table, row_ids, timeout_s)
        except BaseException:  # whatever it was: a probe that is not reported would stay open
            self._breaker.failed()
            self._count(failures=1)
            raise
        self._breaker.succeeded()
        return words

    def _turn_away(self) -> TierError:
        self._count(turned_away=1)
        return TierUnreachableError(
            f"{self.name} failed {self._breaker.max_failures} times in a row and is asked again "
            f"only every {self._breaker.cooldown_s:g} s"
        )

    def _count(
        self, *, attempts: int = 0, failures: int = 0, retries: int = 0, turned_away: int = 0
    ) -> None:
        with self._lock:
            before = self._stats
            self._stats = replace(
                before,
                attempts=before.attempts + attempts,
                failures=before.failures + failures,
                retries=before.retries + retries,
                turned_away=before.turned_away + turned_away,
            )
