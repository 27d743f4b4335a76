"""DiskTier: a table that stays on disk (SSD), read by batches of small reads.

The files are read and never mapped, so that truncating one is an error and not the process's end;
and a file that was changed since it was opened is refused, so that its rows are never mixed with
others. Knows records and where their parts lie; knows no caching (that is `hot_cache`'s).
"""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path

import numpy as np
import torch

from engram_core import compiled
from engram_core.disk_reads import read_each
from engram_core.errors import ArtefactError, TierError
from engram_core.store.base import RowIds, TierReport
from engram_core.store.kernels import check_ids, check_output
from engram_core.store.record_reader import RecordReader
from engram_core.tables.file_state import FileState
from engram_core.tables.record_part import PartedTable
from engram_core.tables.records import PAGE_BYTES, Bytes

_PIECE_ROWS = 8192  # asked of the disk at once


class DiskTier:
    """Rows of a packed table's file, or of a table in somebody else's.

    Args:
        table: the opened table. name: label in statistics.

    Raises:
        ArtefactError: a file cannot be opened.
        TierError: a file was changed since its header was read.
    """

    is_blocking = True

    def __init__(self, table: PartedTable, *, name: str = "ssd") -> None:
        record, self._parts = table.format, table.parts
        self.name, self.num_rows, self.row_dim = name, table.num_rows, record.row_dim
        self.nbytes = sum(part.span_bytes(table.num_rows) for part in self._parts)
        self._format = record
        self._files = {path: self._open(path) for path in {part.path for part in self._parts}}
        self._states = {path: _state(fd) for path, fd in self._files.items()}
        for part in self._parts:
            if part.state is not None:
                part.state.check(self._states[part.path], part.path.name)
        self._fds = np.array([self._files[part.path] for part in self._parts], np.int64)
        self._sizes = np.array([part.num_bytes for part in self._parts], np.int64)
        self._kernel = compiled.load_disk_reads()

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` ``[n]`` into `out` ``[n, row_dim]`` (see `Tier.gather`)."""
        started = time.perf_counter()
        check_output(out, row_ids.size, self.row_dim)
        check_ids(row_ids, self.num_rows)
        unique, places = np.unique(row_ids, return_inverse=True)
        records = self._read(unique)  # [unique, record_bytes]
        reader = RecordReader(records.reshape(-1), self._format, paged=False)
        reader.read(places.reshape(-1).astype(np.int64, copy=False), out)
        elapsed = time.perf_counter() - started
        return TierReport({self.name: row_ids.size}, {self.name: elapsed}, records.nbytes)

    def forget(self, row_ids: RowIds) -> None:
        """Let the system drop the pages of these rows: their next read asks the disk again.

        A wish: pages that another process has mapped, or that were just written, stay.
        """
        for part, fd in zip(self._parts, self._fds.tolist(), strict=True):
            for offset in part.offsets(row_ids).tolist():
                page = offset - offset % PAGE_BYTES  # a smaller range would drop nothing
                length = offset + part.num_bytes - page
                length += -length % PAGE_BYTES
                os.posix_fadvise(fd, page, length, os.POSIX_FADV_DONTNEED)

    def check_unchanged(self) -> None:
        """Refuse files that were written to since they were opened.

        Raises:
            TierError: one was.
        """
        for path, fd in self._files.items():
            self._states[path].check(_state(fd), path.name)

    def _open(self, path: Path) -> int:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise ArtefactError(f"{path.name} cannot be read") from None
        weakref.finalize(self, os.close, fd)
        # rows lie anywhere: what the system would read ahead is never the next row
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd

    def _read(self, unique: RowIds) -> Bytes:
        records = np.empty((unique.size, self._format.record_bytes), np.uint8)
        for start in range(0, unique.size, _PIECE_ROWS):
            piece = slice(start, start + _PIECE_ROWS)
            offsets = np.stack([part.offsets(unique[piece]) for part in self._parts])
            failed = read_each(self._fds, self._sizes, offsets, records[piece], self._kernel)
            if failed >= 0:
                row, part = divmod(failed, len(self._parts))
                raise self._unreadable(int(unique[start + row]), part)
        self.check_unchanged()  # afterwards: what was read before a change is right
        return records

    def _unreadable(self, row: int, part: int) -> TierError:
        where = self._parts[part]
        return TierError(
            f"{where.path.name}: row {row} cannot be read; "
            f"accepted: {where.file_bytes} readable bytes"
        )


def _state(fd: int) -> FileState:
    return FileState.of(os.fstat(fd))
