"""DeviceTable: a whole table in the device's own memory, for tables that fit there.

The rows never cross the bus: a lookup brings row ids to the device (`staging.RowLanding`), and the
layer gathers there. Knows no ids' meaning and no streams.
"""

from __future__ import annotations

import time

import torch

from engram_core.errors import ConfigError
from engram_core.store.base import RowIds, TierReport
from engram_core.store.kernels import check_ids, check_output


class DeviceTable:
    """Rows of a dense table on a device.

    Args:
        rows: ``[num_rows, row_dim]`` in bfloat16, on the device; kept, not copied.
        name: label in statistics.
    """

    is_blocking = False

    def __init__(self, rows: torch.Tensor, *, name: str = "device") -> None:
        if rows.dtype != torch.bfloat16 or rows.dim() != 2:
            raise ConfigError(
                f"rows is {tuple(rows.shape)} {rows.dtype}; accepted: two dimensions in bfloat16"
            )
        self.rows = rows
        self.name = name
        self.num_rows, self.row_dim = rows.shape
        self.nbytes = rows.nbytes

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows into host memory (see `Tier.gather`); waits for the device."""
        started = time.perf_counter()
        check_output(out, row_ids.size, self.row_dim)
        check_ids(row_ids, self.num_rows)
        ids = torch.from_numpy(row_ids).to(self.rows.device)
        out.copy_(self.rows.index_select(0, ids))
        return TierReport(
            {self.name: row_ids.size}, {self.name: time.perf_counter() - started}, out.nbytes
        )
