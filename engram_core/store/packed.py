"""PackedTier: a whole packed table in host memory, in any of the row formats.

Knows records; knows no files, and no caching.
"""

from __future__ import annotations

import time

import torch

from engram_core.errors import ConfigError
from engram_core.store.base import RowIds, TierReport
from engram_core.store.kernels import check_ids, check_output
from engram_core.store.record_reader import RecordReader
from engram_core.tables.records import Bytes, RecordFormat


class PackedTier:
    """Rows of a packed table in host memory (DRAM).

    Args:
        data: the records in pages, uint8, flat; kept, not copied. record: their format.
        num_rows: of the table. name: label in statistics.

    Raises:
        ConfigError: `data` has another length than the rows need.
    """

    is_blocking = False

    def __init__(
        self, data: Bytes, record: RecordFormat, num_rows: int, *, name: str = "host"
    ) -> None:
        if data.size != record.table_bytes(num_rows):
            raise ConfigError(
                f"data is {data.size} bytes; accepted: {record.table_bytes(num_rows)} for "
                f"{num_rows} rows"
            )
        self.name, self.num_rows, self.row_dim = name, num_rows, record.row_dim
        self.nbytes = data.size
        self._reader = RecordReader(data, record)

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows `row_ids` ``[n]`` into `out` ``[n, row_dim]`` (see `Tier.gather`)."""
        started = time.perf_counter()
        check_output(out, row_ids.size, self.row_dim)
        check_ids(row_ids, self.num_rows)
        self._reader.read(row_ids, out)
        elapsed = time.perf_counter() - started
        return TierReport({self.name: row_ids.size}, {self.name: elapsed})
