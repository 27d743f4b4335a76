"""RemoteTier: one table whose rows somebody else keeps, asked for over a row source.

Asks for each different row once. How patient to be is the source's business
(`patient_source`). Knows no protocol.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import torch

from engram_core.errors import ConfigError, TierRefusedError
from engram_core.store.base import RowIds, TierReport
from engram_core.store.kernels import as_words, check_ids, check_output, round_rows, take_rows
from engram_core.store.patient_source import PatientRowSource
from engram_core.store.row_source import RowSource, RowWords

_CHUNK_ROWS = 4096  # keeps the scratch rows of a conversion in the processor's cache


class RemoteTier:
    """The rows of one table of a row source.

    Args:
        source: who is asked; shared by the tiers of several tables, closed by its owner.
        table: the table's name there (`row_source.row_table`).
        num_rows: rows of the whole table. row_dim: values in a row.
        timeout_s: seconds that a gather may take.
        servers: who is behind the source, for statistics.
        name: label in statistics.

    Attributes:
        servers: as given.

    Raises:
        ConfigError: `timeout_s` is out of range.
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
        servers: Sequence[PatientRowSource] = (),
        name: str = "remote",
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s is {timeout_s}; accepted: a number > 0")
        self.name, self.num_rows, self.row_dim = name, num_rows, row_dim
        self.timeout_s = timeout_s
        self.servers = tuple(servers)
        self._source, self._table = source, table
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def transferred_bytes(self) -> int:
        """Bytes of row ids and rows that gathers with an answer moved."""
        return self._bytes

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` ``[n]`` into `out` ``[n, row_dim]`` (see `Tier.gather`).

        Each different row is asked for once. After a TierError `out` is untouched.

        Raises:
            TierTimeoutError, TierUnreachableError, TierRefusedError: see `RowSource.read_rows`.
        """
        started = time.perf_counter()
        check_output(out, row_ids.size, self.row_dim)
        check_ids(row_ids, self.num_rows)
        moved = 0
        if row_ids.size:
            unique, places = np.unique(row_ids, return_inverse=True)
            words = self._source.read_rows(self._table, unique, self.timeout_s)
            self._check(words, unique.size)
            moved = unique.nbytes + words.nbytes
            with self._lock:
                self._bytes += moved
            _write(words, places.reshape(-1), out)
        elapsed = time.perf_counter() - started
        return TierReport({self.name: row_ids.size}, {self.name: elapsed}, moved)

    def _check(self, words: RowWords, num_rows: int) -> None:
        if words.shape != (num_rows, self.row_dim):
            raise TierRefusedError(
                f"{self._source.name} delivers rows {words.shape}; "
                f"accepted: ({num_rows}, {self.row_dim})"
            )


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
