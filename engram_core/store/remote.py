"""RemoteTier: one table whose rows somebody else keeps, asked for over a row source.

Bounds what a failing source can cost: every attempt has a timeout, attempts are counted, and a
circuit breaker stops asking a source that keeps failing. Knows no protocol.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import torch

from engram_core.errors import ConfigError, TierError, TierRefusedError, TierUnreachableError
from engram_core.store.base import RowIds, TierReport
from engram_core.store.circuit_breaker import BreakerState, CircuitBreaker
from engram_core.store.kernels import as_words, check_ids, check_output, round_rows, take_rows
from engram_core.store.row_source import RowSource, RowWords

_CHUNK_ROWS = 4096  # keeps the scratch rows of a conversion in the processor's cache


class RemoteTier:
    """The rows of one table of a row source.

    A gather takes at most ``(retries + 1) * timeout_s``: failed attempts are repeated at once,
    because the pause that helps a source that is down is the breaker's.

    Args:
        source: who is asked; shared by the tiers of several tables, closed by its owner.
        table: the table's name there (`row_source.row_table`).
        num_rows: rows of the whole table. row_dim: values in a row.
        timeout_s: seconds that one attempt may take, however many rows it reads.
        retries: attempts after the first; a refusal is never repeated.
        breaker: shared by the tiers that depend on the same source; default: one of its own.
        name: label in statistics.

    Raises:
        ConfigError: a number is out of range.
    """

    is_blocking = True
    nbytes = 0  # nothing is kept here

    def __init__(
        self,
        source: RowSource,
        table: str,
        num_rows: int,
        row_dim: int,
        *,
        timeout_s: float = 1.0,
        retries: int = 1,
        breaker: CircuitBreaker | None = None,
        name: str = "remote",
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s is {timeout_s}; accepted: a number > 0")
        if retries < 0:
            raise ConfigError(f"retries is {retries}; accepted: a number >= 0")
        self.name, self.num_rows, self.row_dim = name, num_rows, row_dim
        self.timeout_s, self.retries = timeout_s, retries
        self._source, self._table = source, table
        self._breaker = breaker or CircuitBreaker()
        self._lock = threading.Lock()
        self._requests = self._failures = self._retries = self._turned_away = self._bytes = 0

    @property
    def requests(self) -> int:
        """Attempts that were sent, first ones and repeated ones."""
        return self._requests

    @property
    def failures(self) -> int:
        """Attempts that brought no rows."""
        return self._failures

    @property
    def retried(self) -> int:
        """Attempts that repeated a failed one."""
        return self._retries

    @property
    def turned_away(self) -> int:
        """Gathers that the open breaker failed without asking."""
        return self._turned_away

    @property
    def transferred_bytes(self) -> int:
        """Bytes of row ids and rows that attempts with an answer moved."""
        return self._bytes

    @property
    def breaker_state(self) -> BreakerState:
        """What the breaker would do with a request now."""
        return self._breaker.state

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` ``[n]`` into `out` ``[n, row_dim]`` (see `Tier.gather`).

        Each different row is asked for once. After a TierError `out` is untouched.

        Raises:
            TierTimeoutError, TierUnreachableError, TierRefusedError: see `RowSource.read_rows`;
                unreachable also while the breaker is open.
        """
        started = time.perf_counter()
        check_output(out, row_ids.size, self.row_dim)
        check_ids(row_ids, self.num_rows)
        moved = 0
        if row_ids.size:
            unique, places = np.unique(row_ids, return_inverse=True)
            words = self._read(unique)
            moved = unique.nbytes + words.nbytes
            self._count(moved=moved)
            _write(words, places.reshape(-1), out)
        elapsed = time.perf_counter() - started
        return TierReport({self.name: row_ids.size}, {self.name: elapsed}, moved)

    def _read(self, row_ids: RowIds) -> RowWords:
        """The rows, from as many attempts as it takes and is allowed."""
        failure: TierError | None = None
        for attempt in range(self.retries + 1):
            if not self._breaker.admit():
                break
            self._count(requests=1, retries=min(attempt, 1))
            try:
                return self._attempt(row_ids)
            except TierRefusedError:
                raise
            except TierError as error:
                failure = error
        if failure is None:
            self._count(turned_away=1)
            raise TierUnreachableError(
                f"{self._source.name} failed {self._breaker.max_failures} times in a row and is "
                f"asked again only every {self._breaker.cooldown_s:g} s"
            )
        raise failure

    def _attempt(self, row_ids: RowIds) -> RowWords:
        try:
            words = self._source.read_rows(self._table, row_ids, self.timeout_s)
            self._check(words, row_ids.size)
        except BaseException:  # whatever it was: a probe that is not reported would stay open
            self._breaker.failed()
            self._count(failures=1)
            raise
        self._breaker.succeeded()
        return words

    def _check(self, words: RowWords, num_rows: int) -> None:
        if words.shape != (num_rows, self.row_dim):
            raise TierRefusedError(
                f"{self._source.name} delivers rows {words.shape}; "
                f"accepted: ({num_rows}, {self.row_dim})"
            )

    def _count(
        self,
        *,
        requests: int = 0,
        retries: int = 0,
        failures: int = 0,
        turned_away: int = 0,
        moved: int = 0,
    ) -> None:
        with self._lock:
            self._requests += requests
            self._retries += retries
            self._failures += failures
            self._turned_away += turned_away
            self._bytes += moved


def _write(words: RowWords, places: RowIds, out: torch.Tensor) -> None:
    """Write ``words[places]`` into a bf16 or float32 `out`."""
    if out.dtype == torch.bfloat16:
        take_rows(words, places, as_words(out))
        return
    scratch = torch.empty((min(_CHUNK_ROWS, places.size), words.shape[1]), dtype=torch.bfloat16)
    for start in range(0, places.size, _CHUNK_ROWS):
        part = places[start : start + _CHUNK_ROWS]
        take_rows(words, part, as_words(scratch)[: part.size])
        round_rows(scratch[: part.size], out[start : start + part.size])
