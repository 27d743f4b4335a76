"""Float8Reader: a table stored as e4m3 bytes with one power-of-two scale per 32 values."""

from __future__ import annotations

import torch

from engram_core.tables.reader import TableDtype
from engram_core.tables.record_part import RecordPart
from engram_core.tables.records import RecordFormat
from engram_core.tables.tensor_source import TensorSource

SCALE_BLOCK = 32  # values that share a scale


class Float8Reader:
    """Reads two matrices side by side (see `reader.RecordReader` and `record_part.PartedTable`).

    Args:
        source: where they lie.
        payload: name of the F8_E4M3 matrix ``[num_rows, row_dim]``.
        scales: name of the F8_E8M0 matrix ``[num_rows, row_dim / 32]``.
    """

    dtype: TableDtype = "float8_e4m3"

    def __init__(self, source: TensorSource, payload: str, scales: str) -> None:
        self._source, self._payload, self._scales = source, payload, scales
        self.num_rows, self.row_dim = source.entry(payload).shape

    @property
    def format(self) -> RecordFormat:
        """Of a row as payload and scales side by side.

        Raises:
            ConfigError: a width that records do not have.
        """
        return RecordFormat(self.dtype, self.row_dim)

    @property
    def table_bytes(self) -> int:
        """Bytes of the table once it is packed in memory."""
        return self.format.table_bytes(self.num_rows)

    @property
    def parts(self) -> tuple[RecordPart, ...]:
        """Where a row's payload and its scales lie."""
        return tuple(self._source.row_part(name) for name in (self._payload, self._scales))

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The values of rows `start` to `stop`: payload times scale, rounded to bfloat16."""
        return dequantise(*self._parts(start, stop)).bfloat16()

    def read_records(self, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` as stored: uint8 ``[stop - start, row_dim + row_dim/32]``."""
        return torch.cat([part.view(torch.uint8) for part in self._parts(start, stop)], dim=1)

    def _parts(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        names = (self._payload, self._scales)
        payload, scales = (self._source.read_rows(name, start, stop) for name in names)
        return payload, scales


def dequantise(payload: torch.Tensor, scales: torch.Tensor, *, block_rows: int = 1) -> torch.Tensor:
    """e4m3 values ``[m, n]`` times one scale per `block_rows` x 32 of them: float32 ``[m, n]``."""
    rows, columns = payload.shape
    blocks = scales.float().repeat_interleave(block_rows, dim=0)[:rows]
    return payload.float() * blocks.repeat_interleave(SCALE_BLOCK, dim=1)[:, :columns]
