"""HostTier: a whole table in host memory (DRAM, or a mapping that the system keeps resident).

Knows the rows' bytes and nothing of where they came from.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from engram_core.errors import ConfigError
from engram_core.store.base import RowIds, TierReport
from engram_core.store.kernels import as_words, check_ids, check_output, round_rows, take_rows

_CHUNK_ROWS = 4096  # keeps the scratch rows of a conversion in the processor's cache


class HostTier:
    """Rows of a dense table in host memory.

    Args:
        rows: contiguous host tensor ``[num_rows, row_dim]`` in bf16, fp16 or float32; kept, not
            copied. Values that are not bf16 are rounded to it when they are read.
        name: label in statistics.
    """

    is_blocking = False

    def __init__(self, rows: torch.Tensor, *, name: str = "host") -> None:
        if rows.dtype not in (torch.bfloat16, torch.float16, torch.float32) or rows.dim() != 2:
            raise ConfigError(
                f"rows is {tuple(rows.shape)} {rows.dtype}; accepted: two dimensions in "
                "bfloat16, float16 or float32"
            )
        if rows.device.type != "cpu" or not rows.is_contiguous():
            raise ConfigError(f"rows lies on {rows.device}; accepted: contiguous host memory")
        self.name = name
        self.num_rows, self.row_dim = rows.shape
        self.nbytes = rows.nbytes
        self._dtype = rows.dtype
        self._words = as_words(rows.detach())  # also keeps the memory alive

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` ``[n]`` into `out` ``[n, row_dim]`` (see `Tier.gather`)."""
        started = time.perf_counter()
        check_output(out, row_ids.size, self.row_dim)
        check_ids(row_ids, self.num_rows)
        if out.dtype == self._dtype == torch.bfloat16:
            take_rows(self._words, row_ids, as_words(out))
        else:
            self._gather_rounded(row_ids, out)
        elapsed = time.perf_counter() - started
        return TierReport({self.name: row_ids.size}, {self.name: elapsed})

    def _gather_rounded(self, row_ids: RowIds, out: torch.Tensor) -> None:
        scratch = torch.empty(min(_CHUNK_ROWS, row_ids.size), self.row_dim, dtype=self._dtype)
        words = as_words(scratch)
        for start in range(0, row_ids.size, _CHUNK_ROWS):
            ids: RowIds = np.ascontiguousarray(row_ids[start : start + _CHUNK_ROWS])
            take_rows(self._words, ids, words[: ids.size])
            round_rows(scratch[: ids.size], out[start : start + ids.size])
