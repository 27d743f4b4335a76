"""InPlaceMemory: private host memory that a table in somebody else's file is packed into.

The rows come to lie as in a packed table, a row's scales behind its values, so that a lookup
touches one place. There are no checksums to compare: only that the files stay what they were when
their headers were read. Knows records; knows no formats of files.
"""

from __future__ import annotations

import os

from engram_core.errors import ArtefactError
from engram_core.store.table_memory import reserve
from engram_core.tables.file_state import FileState
from engram_core.tables.float8_reader import Float8Reader
from engram_core.tables.packed_file import Progress
from engram_core.tables.record_part import RecordPart
from engram_core.tables.records import PAGE_BYTES, Bytes

_PIECE_PAGES = 4096  # 16 MiB: read, then packed


class InPlaceMemory:
    """A table's records in host memory.

    Args:
        table: the opened table. progress: receives packed bytes as they are read.

    Attributes:
        data: the records in pages, uint8, flat. has_huge_pages: as of `TableMemory`.

    Raises:
        ArtefactError: a file cannot be read, or ends early.
        TierError: a file was changed since its header was read.
    """

    def __init__(self, table: Float8Reader, progress: Progress = lambda _bytes: None) -> None:
        self.data: Bytes
        self.data, self.has_huge_pages = reserve(table.table_bytes)
        record = table.format
        piece_rows = _PIECE_PAGES * record.records_per_page
        for start in range(0, table.num_rows, piece_rows):
            stop = min(start + piece_rows, table.num_rows)
            packed = record.pages(table.read_records(start, stop).numpy())
            first = start // record.records_per_page * PAGE_BYTES
            self.data[first : first + packed.size] = packed
            progress(packed.size)
        for part in table.parts:
            _check_unchanged(part)


def _check_unchanged(part: RecordPart) -> None:
    try:
        found = FileState.of(os.stat(part.path))
    except OSError:
        raise ArtefactError(f"{part.path.name} cannot be read") from None
    if part.state is not None:
        part.state.check(found, part.path.name)
