"""CompressedFile: a packed table compressed for a journey, expanded a frame at a time.

Rows are read front to back when an artefact is converted; no tier serves from it, since a row would
cost the expansion of 64 MiB.
"""

from __future__ import annotations

import hashlib
import io
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from engram_core.errors import ArtefactError, MismatchError
from engram_core.tables.manifest import FileRecord
from engram_core.tables.packed_file import (
    CHUNK_BYTES,
    MAX_HEADER_BYTES,
    PackedFile,
    Progress,
    sum_of_chunks,
)
from engram_core.tables.records import PAGE_BYTES, Bytes, RecordFormat
from engram_core.tables.zstd_frames import expand_frame

SUFFIX = ".zst"  # behind the packed table's name


class CompressedFile:
    """A compressed table, of which the record says everything.

    Args:
        path: the file. record: of the file, with its frames and what it expands to.
        expected: the format of the rows. num_rows: of the table.

    Attributes:
        num_rows, row_dim, dtype: of the table. record: as given.

    Raises:
        ArtefactError: the file cannot be read.
        MismatchError: file, record and table contradict each other; it names both values.
    """

    def __init__(
        self, path: Path, record: FileRecord, expected: RecordFormat, num_rows: int
    ) -> None:
        self.path, self.record, self.format, self.num_rows = path, record, expected, num_rows
        self.row_dim, self.dtype = expected.row_dim, expected.dtype
        if record.expanded is None:
            raise ArtefactError(f"{path.name} is listed without what it expands to")
        self._expanded = record.expanded
        self._starts = [0, *accumulate(record.frame_bytes)]
        self._data_offset = self._expanded.bytes - expected.table_bytes(num_rows)
        self._check()
        self._held: tuple[int, Bytes] = (-1, np.empty(0, np.uint8))  # the frame read last

    @property
    def expanded_bytes(self) -> int:
        """Bytes of the packed table."""
        return self._expanded.bytes

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The values of the rows `start` to `stop` (exclusive), bf16 ``[stop - start, row_dim]``.

        Raises:
            ArtefactError: the file cannot be read. MismatchError: a checksum differs.
        """
        return self.format.unpack(self.read_records(start, stop).numpy())

    def read_records(self, start: int, stop: int) -> torch.Tensor:
        """Rows as stored, uint8 ``[stop - start, record_bytes]``; raises as `read` does."""
        pages = self._bytes(*self.format.page_span(start, stop))
        return torch.from_numpy(self.format.records(pages, start, stop))

    def verify(self, progress: Progress = lambda _bytes: None) -> None:
        """Check every frame, what it expands to, and the header inside; raises as `read` does."""
        for index in range(len(self.record.frame_bytes)):
            frame = self._frame(index)
            if index == 0:
                self._check_header(frame)
            progress(len(frame))

    def _check(self) -> None:
        record, expanded = self.record, self._expanded
        num_chunks = -(-expanded.bytes // CHUNK_BYTES)
        size = _size(self.path)
        facts = (
            ("bytes", record.bytes, size),
            ("bytes of the frames", record.bytes, self._starts[-1]),
            ("sha256 of the frames", record.sha256, sum_of_chunks(record.chunks)),
            ("sha256 of the chunks", expanded.sha256, sum_of_chunks(expanded.chunks)),
            ("number of chunks", num_chunks, len(expanded.chunks)),
            ("number of frames", num_chunks, len(record.frame_bytes)),
            ("number of frame sums", num_chunks, len(record.chunks)),
        )
        for what, expected, found in facts:
            self._expect(what, expected, found)
        if not 0 < self._data_offset <= MAX_HEADER_BYTES or self._data_offset % PAGE_BYTES:
            table_bytes = self.format.table_bytes(self.num_rows)
            self._expect("bytes when expanded", f"{table_bytes} and a header", expanded.bytes)

    def _check_header(self, first: Bytes) -> None:
        inside = PackedFile.parse(self.path, io.BytesIO(first[: self._data_offset].tobytes()))
        shape = self.num_rows, self.row_dim
        self._expect("table dtype", self.dtype, inside.format.dtype)
        self._expect("table rows and width", shape, (inside.num_rows, inside.row_dim))

    def _bytes(self, start: int, stop: int) -> Bytes:
        """Bytes of the packed table's records."""
        start, stop = start + self._data_offset, stop + self._data_offset
        out = np.empty(stop - start, np.uint8)
        done = 0
        while done < len(out):
            index, skipped = divmod(start + done, CHUNK_BYTES)
            part = self._frame(index)[skipped : skipped + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)
        return out

    def _frame(self, index: int) -> Bytes:
        """What a frame expands to, its checksums compared before and after."""
        if self._held[0] != index:
            frame = self._read_frame(index)
            self._expect(f"sha256 of frame {index}", self.record.chunks[index], _sum(frame))
            num_bytes = min(CHUNK_BYTES, self._expanded.bytes - index * CHUNK_BYTES)
            data = expand_frame(frame, num_bytes, self.path.name)
            what = f"sha256 of chunk {index} (64 MiB each)"
            self._expect(what, self._expanded.chunks[index], _sum(data))
            self._held = index, np.frombuffer(data, np.uint8)
        return self._held[1]

    def _read_frame(self, index: int) -> bytes:
        num_bytes = self.record.frame_bytes[index]
        try:
            with self.path.open("rb") as file:
                file.seek(self._starts[index])
                frame = file.read(num_bytes)
        except OSError:
            raise ArtefactError(f"{self.path.name} cannot be read") from None
        self._expect(f"bytes of frame {index}", num_bytes, len(frame))
        return frame

    def _expect(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            raise MismatchError(what, expected=expected, found=found, where=self.path.name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        raise ArtefactError(f"{path.name} cannot be read") from None


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
