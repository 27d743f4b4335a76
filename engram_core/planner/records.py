"""RecordFormat: what one row of a table occupies, alone and packed into pages.

A record is a row's payload and its scale, stored together; none crosses a 4 KiB page, so that a
row is one read. Knows numbers of rows and bytes; reads and writes no rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from engram_core.planner.validation import require, require_whole

PAGE_BYTES = 4096
LINE_BYTES = 64  # what a processor reads from memory at once
FP8_BLOCK = 32  # values that share a one-byte scale
OUTPUT_BYTES_PER_VALUE = 2  # bfloat16, whatever is stored
MAX_ROW_DIM = 65_536

BITS_PER_VALUE = {"bfloat16": 16, "float16": 16, "int8": 8, "fp8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The record of a row of `row_dim` values in `dtype`.

    Scales: float32 per row (int8), fp16 per row (int4), one byte per 32 values (fp8).

    Raises:
        ConfigError: an unknown dtype, a width out of range, or an odd one for int4.
    """

    dtype: str
    row_dim: int

    def __post_init__(self) -> None:
        require(self.dtype in BITS_PER_VALUE, "dtype", self.dtype, ", ".join(BITS_PER_VALUE))
        require_whole("row_dim", self.row_dim, 1, MAX_ROW_DIM)
        is_even = self.row_dim % 2 == 0
        require(self.dtype != "int4" or is_even, "row_dim", self.row_dim, "an even number for int4")

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row's scales."""
        scales = {"int8": 4, "int4": 2, "fp8": -(-self.row_dim // FP8_BLOCK)}
        return scales.get(self.dtype, 0)

    @property
    def bytes(self) -> int:
        """Bytes of a row: payload and scales."""
        return self.row_dim * BITS_PER_VALUE[self.dtype] // 8 + self.scale_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of a row as compute gets it, and as caches keep it: bfloat16."""
        return OUTPUT_BYTES_PER_VALUE * self.row_dim

    @property
    def line_bytes(self) -> int:
        """Bytes that a processor reads for a row: whole cache lines."""
        return lines(self.bytes)

    @property
    def per_page(self) -> int:
        """Records in a page; 0 when one record is larger than a page."""
        return PAGE_BYTES // self.bytes

    @property
    def pages_per_read(self) -> int:
        """Pages that one row's read touches: 1, more only for records larger than a page."""
        return max(1, -(-self.bytes // PAGE_BYTES))

    def stored_bytes(self, rows: int) -> int:
        """Bytes of `rows` records packed into whole pages."""
        if self.per_page:
            return -(-rows // self.per_page) * PAGE_BYTES
        return rows * self.pages_per_read * PAGE_BYTES

    def rows_in(self, num_bytes: int) -> int:
        """Records that fit into the whole pages of `num_bytes`."""
        pages = num_bytes // PAGE_BYTES
        return pages * self.per_page if self.per_page else pages // self.pages_per_read


def lines(num_bytes: int) -> int:
    """Bytes of the cache lines that so many bytes take."""
    return -(-num_bytes // LINE_BYTES) * LINE_BYTES
