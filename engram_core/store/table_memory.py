"""TableMemory: private host memory that a whole packed table is read into, verified on the way.

Not a mapping of the file: a file that is truncated under a mapping kills the process (SIGBUS), and
one that is overwritten changes rows that were verified. Knows files and checksums; no rows.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np

from engram_core.errors import ArtefactError, MismatchError
from engram_core.tables.manifest import FileRecord
from engram_core.tables.packed_file import CHUNK_BYTES, PackedFile, Progress
from engram_core.tables.records import Bytes

_HUGE_PAGE_BYTES = 2 * 2**20


class TableMemory:
    """A table file in host memory.

    Args:
        file: the opened table. record: its checksums. progress: receives bytes as they are read.

    Attributes:
        data: the records, uint8, flat. has_huge_pages: whether they were asked for and granted
            as a wish; lookups on 4 KiB pages miss the TLB about once a row.

    Raises:
        ArtefactError: the file cannot be read. MismatchError: a chunk's checksum differs.
    """

    def __init__(
        self, file: PackedFile, record: FileRecord, progress: Progress = lambda _bytes: None
    ) -> None:
        whole, self.has_huge_pages = reserve(file.file_bytes)
        read_verified(file, record, whole, progress)
        self.data: Bytes = whole[file.data_offset :]


def reserve(num_bytes: int) -> tuple[Bytes, bool]:
    """Private memory of zeros, uint8 ``[num_bytes]``, and whether huge pages were granted."""
    # the mapping is anonymous, hence zero-filled, page-aligned and given back by munmap
    memory = mmap.mmap(-1, num_bytes)
    return np.frombuffer(memory, np.uint8), _wish_huge_pages(memory)


def read_verified(file: PackedFile, record: FileRecord, out: Bytes, progress: Progress) -> None:
    """Read a whole table file into `out` ``[file_bytes]``, one chunk after the other.

    Reading one chunk and summing the one before it go side by side.

    Raises:
        ArtefactError: the file cannot be read, or ends early.
        MismatchError: a chunk's checksum differs; it names the chunk.
    """
    with ThreadPoolExecutor(1, "engram-checksum") as pool:
        pending = []
        for index, (start, stop) in enumerate(_chunks(file)):
            _read_chunk(file, start, out[start:stop])
            pending.append(pool.submit(_check_chunk, file, record, index, out[start:stop]))
            progress(stop - start)
        for each in pending:
            each.result()


def verify(file: PackedFile, record: FileRecord, progress: Progress = lambda _bytes: None) -> None:
    """Check a table file's chunks without keeping it; raises as `read_verified` does."""
    buffer = np.empty(CHUNK_BYTES, np.uint8)
    for index, (start, stop) in enumerate(_chunks(file)):
        _read_chunk(file, start, buffer[: stop - start])
        _check_chunk(file, record, index, buffer[: stop - start])
        progress(stop - start)


def _chunks(file: PackedFile) -> Iterator[tuple[int, int]]:
    for start in range(0, file.file_bytes, CHUNK_BYTES):
        yield start, min(start + CHUNK_BYTES, file.file_bytes)


def _read_chunk(file: PackedFile, start: int, out: Bytes) -> None:
    try:
        with file.path.open("rb", buffering=0) as source:
            source.seek(start)
            view, done = memoryview(out.data), 0
            while done < len(out):
                got = source.readinto(view[done:])
                if not got:
                    raise ArtefactError(
                        f"{file.path.name} ends at byte {start + done}; "
                        f"accepted: {file.file_bytes} bytes"
                    )
                done += got
    except OSError:
        raise ArtefactError(f"{file.path.name} cannot be read") from None


def _check_chunk(file: PackedFile, record: FileRecord, index: int, data: Bytes) -> None:
    found = sha256(data.data).hexdigest()
    expected = record.chunks[index] if index < len(record.chunks) else "none"
    if found != expected:
        what = f"sha256 of chunk {index} (64 MiB each)"
        raise MismatchError(what, expected=expected, found=found, where=file.path.name)


def _wish_huge_pages(memory: mmap.mmap) -> bool:
    if len(memory) < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel built without them
        return False
    return True
