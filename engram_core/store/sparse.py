"""SparseTier: a host tier that stores only the rows that were ever written.

Retrofitted tables are mostly empty; an unwritten row is exactly zero. Knows no files.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import torch

from engram_core import compiled
from engram_core.errors import ConfigError
from engram_core.store.base import RowIds, TierReport
from engram_core.store.host import HostTier
from engram_core.store.kernels import (
    as_words,
    check_ids,
    check_output,
    count_unique,
    non_zero_rows,
    round_rows,
)


class SparseTier:
    """Written rows in bf16 behind a dense row -> slot map; slot 0 is the zero row.

    Rows that were written with zeros come next, so that a slot's number tells a hit from a miss.

    Args:
        row_ids: int64 ``[k]``, the written rows, each once, in any order.
        rows: ``[k, row_dim]`` in bf16, fp16 or float32; copied and rounded to bf16.
        num_rows: rows of the whole table, written or not.
        name: label in statistics.

    Raises:
        IdRangeError: a written row lies outside the table.
        ConfigError: lengths differ, or a row was written twice.
    """

    is_blocking = False

    def __init__(
        self, row_ids: RowIds, rows: torch.Tensor, num_rows: int, *, name: str = "host"
    ) -> None:
        _check_written(row_ids, rows, num_rows)
        slots = torch.zeros(len(rows) + 1, rows.shape[1], dtype=torch.bfloat16)
        round_rows(rows.detach(), slots[1:])
        is_hit = non_zero_rows(slots[1:])
        num_zero = len(rows) - int(np.count_nonzero(is_hit))
        if num_zero:
            order = np.argsort(is_hit, kind="stable")
            slots[1:] = slots[1:][torch.from_numpy(order)]
            row_ids = row_ids[order]
        self._first_hit = 1 + num_zero  # slots from here on hold a value that is not zero
        self._words = as_words(slots).view(np.uint16)
        self._slot_rows = HostTier(slots, name=name)
        self._slot_of_row = np.zeros(num_rows, dtype=np.int32)  # [num_rows], 0 = not written
        self._slot_of_row[row_ids] = np.arange(1, len(rows) + 1, dtype=np.int32)
        self.name = name
        self.num_rows, self.row_dim = num_rows, rows.shape[1]
        self.nbytes = self._slot_of_row.nbytes + slots.nbytes

    @property
    def num_written(self) -> int:
        """Rows that are stored; all others read as zero."""
        return self._slot_rows.num_rows - 1

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` ``[n]`` into `out` ``[n, row_dim]`` (see `Tier.gather`)."""
        started = time.perf_counter()
        if not self._gather_compiled(row_ids, out):
            check_ids(row_ids, self.num_rows)
            slots = np.take(self._slot_of_row, row_ids, mode="clip").astype(np.int64)
            self._slot_rows.gather(slots, out)
        elapsed = time.perf_counter() - started
        return TierReport({self.name: row_ids.size}, {self.name: elapsed})

    def _gather_compiled(self, row_ids: RowIds, out: torch.Tensor) -> bool:
        kernels = compiled.kernels()
        if kernels is None or out.dtype != torch.bfloat16:
            return False
        check_output(out, row_ids.size, self.row_dim)
        words = as_words(out).view(np.uint16)
        try:
            return bool(kernels.take_sparse(row_ids, self._slot_of_row, self._words, words) == 0)
        except TypeError:  # ids in another memory order than the usual one
            return False

    def hits(
        self, row_ids: RowIds, needed: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.bool_], int]:
        """Tokens all of whose needed rows have a value that is not zero, and their number.

        Args:
            row_ids: int64 ``[tokens, columns]``.
            needed: bool ``[columns]``.

        Raises:
            IdRangeError: an id is negative or not below `num_rows`.
        """
        kernels = compiled.kernels()
        if kernels is not None:
            hits = np.empty(len(row_ids), dtype=np.bool_)
            try:
                found = kernels.mark_hits(row_ids, self._slot_of_row, self._first_hit, needed, hits)
            except TypeError:  # ids in another memory order than the usual one
                found = -1
            if found >= 0:
                return hits, int(found)
        check_ids(row_ids, self.num_rows)
        is_hit = self._slot_of_row[row_ids[:, needed]] >= self._first_hit
        hits = np.logical_and.reduce(is_hit, axis=1)
        return hits, int(np.count_nonzero(hits))


def _check_written(row_ids: RowIds, rows: torch.Tensor, num_rows: int) -> None:
    if rows.dim() != 2 or row_ids.shape != (len(rows),):
        raise ConfigError(
            f"row_ids is {row_ids.shape} for rows {tuple(rows.shape)}; accepted: one id per row"
        )
    check_ids(row_ids, num_rows)
    if count_unique(row_ids) != len(row_ids):
        raise ConfigError("row_ids names a row twice; accepted: each written row once")
