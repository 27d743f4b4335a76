"""PackedWriter: writes a packed table front to back, of any size; `packed_file` has the form."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any, Protocol

import numpy as np
import torch

from engram_core.errors import ConfigError
from engram_core.tables.packed_file import CHUNK_BYTES, TENSOR
from engram_core.tables.records import PAGE_BYTES, Bytes, RecordFormat


class Sink(Protocol):
    """Where bytes go: a file, or whatever compresses them first."""

    def write(self, data: Any, /) -> int:
        """Take the next bytes."""


class PackedWriter:
    """Writes a packed table front to back, and sums what it writes.

    Args:
        file: open for writing, at its start. record: the rows' format. num_rows: of the table.
    """

    def __init__(self, file: Sink, record: RecordFormat, num_rows: int) -> None:
        self._file, self._format, self._num_rows = file, record, num_rows
        self._written = 0
        self._left: Bytes = np.empty((0, record.record_bytes), np.uint8)  # less than a page
        self._sums = _ChunkSums()
        self._put(_header(record, num_rows))

    def append(self, values: torch.Tensor) -> None:
        """Add the next rows ``[n, row_dim]``. Raises ConfigError when the table is full."""
        self.append_records(self._format.pack(values))

    def append_records(self, records: Bytes) -> None:
        """Add the next rows as records uint8 ``[n, record_bytes]``, bit by bit."""
        self._written += len(records)
        if self._written > self._num_rows:
            raise ConfigError(f"{self._written} rows written; accepted: {self._num_rows}")
        pending = np.concatenate([self._left, records])
        whole = len(pending) - len(pending) % self._format.records_per_page
        self._put(self._format.pages(pending[:whole]))
        self._left = pending[whole:]

    def finish(self) -> tuple[int, tuple[str, ...]]:
        """Write the last page; returns the file's bytes and its chunks' checksums.

        Raises:
            ConfigError: rows are missing.
        """
        if self._written != self._num_rows:
            raise ConfigError(f"{self._written} rows written; accepted: {self._num_rows}")
        self._put(self._format.pages(self._left))
        return self._sums.total_bytes, self._sums.finish()

    def _put(self, data: Bytes) -> None:
        view = data.data  # written and summed without a copy
        self._file.write(view)
        self._sums.add(view)


class _ChunkSums:
    """sha256 of every 64 MiB of a stream of bytes."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._done: list[str] = []
        self._open = hashlib.sha256()

    def add(self, data: memoryview) -> None:
        """Take the next bytes."""
        while len(data):
            room = CHUNK_BYTES - self.total_bytes % CHUNK_BYTES
            part = data[:room]
            self._open.update(part)
            self.total_bytes += len(part)
            if self.total_bytes % CHUNK_BYTES == 0:
                self._close_chunk()
            data = data[room:]

    def finish(self) -> tuple[str, ...]:
        """All sums, hexadecimal."""
        if self.total_bytes % CHUNK_BYTES:
            self._close_chunk()
        return tuple(self._done)

    def _close_chunk(self) -> None:
        self._done.append(self._open.hexdigest())
        self._open = hashlib.sha256()


def file_bytes(record: RecordFormat, num_rows: int) -> int:
    """Bytes of the file of a table."""
    return len(_header(record, num_rows)) + record.table_bytes(num_rows)


def _header(record: RecordFormat, num_rows: int) -> Bytes:
    size = record.table_bytes(num_rows)
    facts = {"dtype": record.dtype, "row_dim": str(record.row_dim), "num_rows": str(num_rows)}
    header = {
        "__metadata__": facts,
        TENSOR: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
    }
    text = json.dumps(header).encode()
    length = -(-(8 + len(text)) // PAGE_BYTES) * PAGE_BYTES  # the records begin on a page
    text = text.ljust(length - 8)
    return np.frombuffer(struct.pack("<Q", len(text)) + text, np.uint8)
