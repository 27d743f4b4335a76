"""PackedFile: a table of packed records on disk, described by its own header.

A safetensors file with one byte tensor, ``records``, that begins on a page: any safetensors reader
opens it, and a row's place follows from its id alone. Checks form here; bytes are checked against
the manifest's checksums by whoever reads them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.tables.records import PAGE_BYTES, Bytes, RecordFormat

CHUNK_BYTES = 64 * 2**20  # a checksum covers so much, counted from the file's start
_TENSOR = "records"
_LARGEST_HEADER = 16 * PAGE_BYTES

Progress = Callable[[int], None]  # receives the bytes done since its last call


@dataclass(frozen=True, slots=True)
class PackedFile:
    """An opened header; holds no file open.

    Attributes:
        path: the file. format: of its records. num_rows: of the table.
        data_offset: where the records begin, in bytes.
    """

    path: Path
    format: RecordFormat
    num_rows: int
    data_offset: int

    @property
    def row_dim(self) -> int:
        """Values in a row."""
        return self.format.row_dim

    @property
    def table_bytes(self) -> int:
        """Bytes of the records."""
        return self.format.table_bytes(self.num_rows)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.data_offset + self.table_bytes

    @classmethod
    def open(cls, path: Path) -> PackedFile:
        """Read and check a file's header.

        Raises:
            ArtefactError: it cannot be read or is no packed table.
            MismatchError: the file has another length than its header says.
        """
        try:
            with path.open("rb") as file:
                header, data_offset = _read_header(file, path.name)
                size = path.stat().st_size
        except OSError:
            raise ArtefactError(f"{path.name} cannot be read") from None
        opened = cls._parse(path, header, data_offset)
        if size != opened.file_bytes:
            raise MismatchError("bytes", expected=opened.file_bytes, found=size, where=path.name)
        return opened

    @classmethod
    def _parse(cls, path: Path, header: object, data_offset: int) -> PackedFile:
        try:
            facts, tensor = header["__metadata__"], header[_TENSOR]  # type: ignore[index]
            record = RecordFormat(str(facts["dtype"]), int(facts["row_dim"]))
            opened = cls(path, record, int(facts["num_rows"]), data_offset)
            described = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise ArtefactError(f"{path.name} is no packed table: {error}") from None
        expected = "U8", [opened.table_bytes], [0, opened.table_bytes]
        if described != expected:
            raise MismatchError("records", expected=expected, found=described, where=path.name)
        return opened

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The values of the rows `start` to `stop` (exclusive), bf16 ``[stop - start, row_dim]``.

        Raises:
            ArtefactError: the file ends early.
        """
        record, per_page = self.format, self.format.records_per_page
        first_page, last_page = start // per_page, -(-stop // per_page)
        with self.path.open("rb") as file:
            file.seek(self.data_offset + first_page * PAGE_BYTES)
            data = np.fromfile(file, np.uint8, (last_page - first_page) * PAGE_BYTES)
        if len(data) < (last_page - first_page) * PAGE_BYTES:
            raise ArtefactError(f"{self.path.name} ends early; accepted: {self.file_bytes} bytes")
        pages = data.reshape(-1, PAGE_BYTES)
        records = pages[:, : per_page * record.record_bytes].reshape(-1, record.record_bytes)
        skipped = start - first_page * per_page
        return record.unpack(records[skipped : skipped + stop - start])


class PackedWriter:
    """Writes a packed table front to back, and sums what it writes.

    Args:
        file: open for writing, at its start. record: the rows' format. num_rows: of the table.
    """

    def __init__(self, file: BinaryIO, record: RecordFormat, num_rows: int) -> None:
        self._file, self._format, self._num_rows = file, record, num_rows
        self._written = 0
        self._left: Bytes = np.empty((0, record.record_bytes), np.uint8)  # less than a page
        self._sums = ChunkSums()
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


class ChunkSums:
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


def sum_of_chunks(chunks: tuple[str, ...]) -> str:
    """One sha256 for a file that is summed in chunks: over its chunks' sums, a line each."""
    return hashlib.sha256("".join(f"{chunk}\n" for chunk in chunks).encode()).hexdigest()


def _header(record: RecordFormat, num_rows: int) -> Bytes:
    size = record.table_bytes(num_rows)
    facts = {"dtype": record.dtype, "row_dim": str(record.row_dim), "num_rows": str(num_rows)}
    header = {
        "__metadata__": facts,
        _TENSOR: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
    }
    text = json.dumps(header).encode()
    length = -(-(8 + len(text)) // PAGE_BYTES) * PAGE_BYTES  # the records begin on a page
    text = text.ljust(length - 8)
    return np.frombuffer(struct.pack("<Q", len(text)) + text, np.uint8)


def _read_header(file: BinaryIO, name: str) -> tuple[object, int]:
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < length <= _LARGEST_HEADER or (length + 8) % PAGE_BYTES:
        raise ArtefactError(f"{name} is no packed table: its header is {length} bytes")
    try:
        return json.loads(file.read(length)), 8 + length
    except ValueError:
        raise ArtefactError(f"{name} is no packed table: its header is no JSON") from None
