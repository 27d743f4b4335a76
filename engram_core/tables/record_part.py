"""RecordPart: where one part of every record of a table lies in a file.

A packed table has one part, the whole record; a table whose values and scales lie in two places has
two. Knows offsets; reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engram_core.tables.file_state import FileState
from engram_core.tables.records import RecordFormat


@dataclass(frozen=True, slots=True)
class RecordPart:
    """Where a part of every record lies.

    Attributes:
        path: the file. file_bytes: its length.
        first: where row 0's part begins, in bytes.
        num_bytes: of a row's part.
        per_block: rows that lie side by side before a gap.
        block_bytes: from one such block to the next.
        state: of the file when its header was read; None where a reader's own check follows.
    """

    path: Path
    file_bytes: int
    first: int
    num_bytes: int
    per_block: int
    block_bytes: int
    state: FileState | None = None

    def offsets(self, row_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where the rows' parts begin in the file, in bytes."""
        blocks, places = np.divmod(row_ids, self.per_block)
        starts: npt.NDArray[np.int64] = blocks * self.block_bytes + places * self.num_bytes
        return starts + self.first

    def span_bytes(self, num_rows: int) -> int:
        """Bytes of all rows' parts, whole blocks."""
        return -(-num_rows // self.per_block) * self.block_bytes


class PartedTable(Protocol):
    """A table whose records lie in files, in one part or several."""

    @property
    def format(self) -> RecordFormat:
        """Of the records, their parts one behind the other."""

    @property
    def num_rows(self) -> int:
        """Rows of the table."""

    @property
    def parts(self) -> tuple[RecordPart, ...]:
        """The parts of a record, in their order."""
