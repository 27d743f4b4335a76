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
from engram_core.tables.record_part import RecordPart
from engram_core.tables.records import PAGE_BYTES, RecordFormat

CHUNK_BYTES = 64 * 2**20  # a checksum covers so much, counted from the file's start
TENSOR = "records"
MAX_HEADER_BYTES = 16 * PAGE_BYTES  # its length included

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
    def dtype(self) -> str:
        """The row format."""
        return self.format.dtype

    @property
    def table_bytes(self) -> int:
        """Bytes of the records."""
        return self.format.table_bytes(self.num_rows)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.data_offset + self.table_bytes

    @property
    def parts(self) -> tuple[RecordPart, ...]:
        """Where the records lie: each in one piece, in pages."""
        record = self.format
        pages = (record.records_per_page, PAGE_BYTES)
        where = (self.path, self.file_bytes, self.data_offset)
        return (RecordPart(*where, record.record_bytes, *pages),)

    @classmethod
    def open(cls, path: Path) -> PackedFile:
        """Read and check a file's header.

        Raises:
            ArtefactError: it cannot be read or is no packed table.
            MismatchError: the file has another length than its header says.
        """
        try:
            with path.open("rb") as file:
                opened = cls.parse(path, file)
                size = path.stat().st_size
        except OSError:
            raise ArtefactError(f"{path.name} cannot be read") from None
        if size != opened.file_bytes:
            raise MismatchError("bytes", expected=opened.file_bytes, found=size, where=path.name)
        return opened

    @classmethod
    def parse(cls, path: Path, file: BinaryIO) -> PackedFile:
        """Read and check the header that `file` begins with; raises as `open` does."""
        header, data_offset = _read_header(file, path.name)
        try:
            facts, tensor = header["__metadata__"], header[TENSOR]  # type: ignore[index]
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
            ArtefactError: the file cannot be read, or ends early.
        """
        return self.format.unpack(self.read_records(start, stop).numpy())

    def read_records(self, start: int, stop: int) -> torch.Tensor:
        """Rows as stored, uint8 ``[stop - start, record_bytes]``; raises as `read` does."""
        first, last = self.format.page_span(start, stop)
        try:
            with self.path.open("rb") as file:
                file.seek(self.data_offset + first)
                pages = np.fromfile(file, np.uint8, last - first)
        except OSError:
            raise ArtefactError(f"{self.path.name} cannot be read") from None
        if len(pages) < last - first:
            raise ArtefactError(f"{self.path.name} ends early; accepted: {self.file_bytes} bytes")
        return torch.from_numpy(self.format.records(pages, start, stop))


def sum_of_chunks(chunks: tuple[str, ...]) -> str:
    """One sha256 for a file that is summed in chunks: over its chunks' sums, a line each."""
    return hashlib.sha256("".join(f"{chunk}\n" for chunk in chunks).encode()).hexdigest()


def _read_header(file: BinaryIO, name: str) -> tuple[object, int]:
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < length < MAX_HEADER_BYTES or (length + 8) % PAGE_BYTES:
        raise ArtefactError(f"{name} is no packed table: its header is {length} bytes")
    try:
        return json.loads(file.read(length)), 8 + length
    except ValueError:
        raise ArtefactError(f"{name} is no packed table: its header is no JSON") from None
