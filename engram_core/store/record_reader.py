"""RecordReader: the values of packed records in host memory, by the fastest way there is.

Compiled kernels where they are loaded, the formats' own definition elsewhere; both give the same
bits. Knows bytes and formats; knows no files and no tables' origin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram_core import compiled
from engram_core.store.base import RowIds
from engram_core.store.kernels import as_words, round_rows, take_rows
from engram_core.tables.records import PAGE_BYTES, Bytes, RecordFormat, scale_values

_PIECE_ROWS = 1024  # keeps scratch rows, and records read ahead, in the processor's cache
_TOUCHED_ROWS = 16  # fewer are read as fast without another call
_KERNELS = {
    "bfloat16": "take_copied",
    "float16": "take_copied",
    "int8": "take_int8",
    "float8_e4m3": "take_fp8",
    "int4": "take_int4",
}


class RecordReader:
    """Reads rows out of a block of records.

    Args:
        data: the records, uint8, flat.
        record: their format.
        paged: whether they lie in pages, as in a table, or one straight after the other.
    """

    def __init__(self, data: Bytes, record: RecordFormat, *, paged: bool = True) -> None:
        self._data, self._format = data, record
        self._page = (record.records_per_page, PAGE_BYTES) if paged else (1, record.record_bytes)
        self._extra = (scale_values(),) if record.dtype == "float8_e4m3" else ()
        self._words = self._plain_words()

    def read(self, row_ids: RowIds, out: torch.Tensor) -> None:
        """Write the rows' values into `out` ``[n, row_dim]``; ids and `out` were checked."""
        for start in range(0, row_ids.size, _PIECE_ROWS):
            ids: RowIds = np.ascontiguousarray(row_ids[start : start + _PIECE_ROWS])
            self._read_piece(ids, out[start : start + ids.size])

    def _read_piece(self, ids: RowIds, out: torch.Tensor) -> None:
        if out.dtype == torch.bfloat16 and self._format.dtype != "float16":
            self._take(ids, out)
            return
        is_half = self._format.dtype == "float16"
        taken = torch.empty(out.shape, dtype=torch.float16 if is_half else torch.bfloat16)
        self._take(ids, taken)
        round_rows(taken, out)

    def _take(self, ids: RowIds, out: torch.Tensor) -> None:
        """Rows as bf16, float16 payloads as they are."""
        if self._words is not None:
            take_rows(self._words, ids, as_words(out))
            return
        kernels = compiled.kernels()
        if kernels is None:
            self._take_defined(ids, out)
            return
        take: Any = getattr(kernels, _KERNELS[self._format.dtype])
        records = (ids, self._data, *self._page, self._format.record_bytes)
        if ids.size >= _TOUCHED_ROWS:
            kernels.touch_records(*records)
        take(*records, *self._extra, as_words(out).view(np.uint16))

    def _take_defined(self, ids: RowIds, out: torch.Tensor) -> None:
        per_page, page_bytes = self._page
        starts = ids // per_page * page_bytes + ids % per_page * self._format.record_bytes
        places = starts[:, None] + np.arange(self._format.record_bytes)
        records = self._data[places]  # [n, record_bytes]
        if self._format.dtype == "float16":
            out.copy_(torch.from_numpy(records).view(torch.float16))
        else:
            out.copy_(self._format.unpack(records))

    def _plain_words(self) -> npt.NDArray[Any] | None:
        """All rows as words ``[rows, row_dim]``, where 16-bit rows leave no gaps."""
        per_page, page_bytes = self._page
        record_bytes = self._format.record_bytes
        is_half = self._format.scale_bytes == 0 and record_bytes == 2 * self._format.row_dim
        if not is_half or per_page * record_bytes != page_bytes:
            return None
        return self._data.view(np.int16).reshape(-1, self._format.row_dim)
