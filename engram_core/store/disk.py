"""DiskTier: a packed table that stays on disk (SSD), read by batches of small reads.

The file is read and never mapped, so that truncating it is an error and not the process's end; and
a file that was changed since it was opened is refused, so that its rows are never mixed with
others. Knows records and one file; knows no caching (that is `hot_cache`'s).
"""

from __future__ import annotations

import os
import time
import weakref

import numpy as np
import torch

from engram_core import compiled
from engram_core.disk_reads import read_each
from engram_core.errors import ArtefactError, TierError
from engram_core.store.base import RowIds, TierReport
from engram_core.store.kernels import check_ids, check_output
from engram_core.store.record_reader import RecordReader
from engram_core.tables.packed_file import PackedFile
from engram_core.tables.records import Bytes

_PIECE_ROWS = 8192  # asked of the disk at once


class DiskTier:
    """Rows of a packed table's file.

    Args:
        file: the opened table. name: label in statistics.

    Raises:
        ArtefactError: the file cannot be opened.
    """

    is_blocking = True

    def __init__(self, file: PackedFile, *, name: str = "ssd") -> None:
        self.name, self.num_rows, self.row_dim = name, file.num_rows, file.row_dim
        self.nbytes = file.table_bytes
        self._file = file
        try:
            self._fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise ArtefactError(f"{file.path.name} cannot be read") from None
        weakref.finalize(self, os.close, self._fd)
        self._opened_as = self._identity()
        # rows lie anywhere: what the system would read ahead is never the next row
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._kernel = compiled.load_disk_reads()

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` ``[n]`` into `out` ``[n, row_dim]`` (see `Tier.gather`)."""
        started = time.perf_counter()
        check_output(out, row_ids.size, self.row_dim)
        check_ids(row_ids, self.num_rows)
        unique, places = np.unique(row_ids, return_inverse=True)
        records = self._read(unique)  # [unique, record_bytes]
        reader = RecordReader(records.reshape(-1), self._file.format, paged=False)
        reader.read(places.reshape(-1).astype(np.int64, copy=False), out)
        elapsed = time.perf_counter() - started
        return TierReport({self.name: row_ids.size}, {self.name: elapsed}, records.nbytes)

    def check_unchanged(self) -> None:
        """Refuse a file that was written to since it was opened.

        Raises:
            TierError: it was.
        """
        found = self._identity()
        if found != self._opened_as:
            raise TierError(
                f"{self._file.path.name} was changed while it is served (bytes and time of change "
                f"were {self._opened_as} and are {found}); accepted: tables that nobody rewrites"
            )

    def _read(self, unique: RowIds) -> Bytes:
        records = np.empty((unique.size, self._file.format.record_bytes), np.uint8)
        offsets = self._file.format.offsets(unique) + self._file.data_offset
        for start in range(0, unique.size, _PIECE_ROWS):
            piece = slice(start, start + _PIECE_ROWS)
            failed = read_each(self._fd, offsets[piece], records[piece], self._kernel)
            if failed >= 0:
                raise TierError(
                    f"{self._file.path.name}: row {int(unique[start + failed])} cannot be read; "
                    f"accepted: {self._file.file_bytes} readable bytes"
                )
        self.check_unchanged()  # afterwards: what was read before a change is right
        return records

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_size, status.st_mtime_ns
