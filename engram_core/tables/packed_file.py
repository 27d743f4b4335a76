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


def sum_of_chunks(chunks: tuple[str, ...]) -> str:
    """One sha256 for a file that is summed in chunks: over its chunks' sums, a line each."""
    return hashlib.sha256("".join(f"{chunk}\n" for chunk in chunks).encode()).hexdigest()


def _read_header(file: BinaryIO, name: str) -> tuple[object, int]:
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < length <= _LARGEST_HEADER or (length + 8) % PAGE_BYTES:
        raise ArtefactError(f"{name} is no packed table: its header is {length} bytes")
    try:
        return json.loads(file.read(length)), 8 + length
    except ValueError:
        raise ArtefactError(f"{name} is no packed table: its header is no JSON") from None
