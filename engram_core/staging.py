"""RowLanding: how gathered rows reach the device.

On the host a gather writes straight into the rows that compute reads. On an accelerator it writes
into reused pinned memory, and one copy on a side stream brings the rows over. Of a table that lies
on the device only the row ids travel, and behind a cache on the device only what it misses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engram_core.device import Device, Event
from engram_core.device_lane import DeviceLane
from engram_core.errors import ConfigError
from engram_core.store.base import OUTPUT_DTYPES, RowIds, Tier, TierReport
from engram_core.store.device_cache import DeviceCache
from engram_core.store.device_table import DeviceTable
from engram_core.store.kernels import check_ids

# Sees rows in host memory, valid during the call.
Look = Callable[[torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class LandedRows:
    """Rows on their way to, or on, the device.

    Attributes:
        rows: device tensor ``[n, row_dim]``, valid once `event` is done; the rows' ids ``[n]``
            where there is a `table`.
        event: the copy's end; None when no copy was needed.
        report: what the tier did.
        table: a table on the device, out of which the rows are still to be gathered.
    """

    rows: torch.Tensor
    event: Event | None
    report: TierReport
    table: torch.Tensor | None = None

    def has_landed(self) -> bool:
        """Whether the rows can be read."""
        return self.event is None or self.event.query()


class RowLanding:
    """Gathers rows of any tier onto one device.

    Args:
        device: where compute reads the rows.
        dtype: what compute reads: bfloat16 or float32 (the same values, upcast).

    Attributes:
        dtype: as given. is_local: whether compute reads what a gather wrote, without a copy.
    """

    def __init__(self, device: Device, dtype: torch.dtype) -> None:
        if dtype not in OUTPUT_DTYPES:
            raise ConfigError(f"dtype is {dtype}; accepted: torch.bfloat16 or torch.float32")
        self.dtype = dtype
        self.is_local = device.shares_host_memory
        self._device = device
        self._lane = DeviceLane(device)

    def gather(self, tier: Tier, row_ids: RowIds, look: Look | None = None) -> LandedRows:
        """Gather the rows `row_ids` ``[n]`` and start bringing them to the device.

        `look` is called with them while they lie in host memory; never for a `DeviceTable`
        or a `DeviceCache`, some of whose rows do not.
        """
        if self.is_local:
            rows = torch.empty((row_ids.size, tier.row_dim), dtype=self.dtype)
            report = tier.gather(row_ids, rows)
            if look is not None:
                look(rows)
            return LandedRows(rows, None, report)
        if isinstance(tier, DeviceTable):
            return self._send_ids(tier, row_ids)
        if isinstance(tier, DeviceCache):
            return LandedRows(*tier.land(row_ids))
        return self._send_rows(tier, row_ids, look)

    # buffers pass from thread to thread: one made in inference mode could not be written outside
    @torch.inference_mode(False)
    def _send_rows(self, tier: Tier, row_ids: RowIds, look: Look | None) -> LandedRows:
        shape = (row_ids.size, tier.row_dim)
        staging = self._lane.take(row_ids.size * tier.row_dim)
        source = staging[: row_ids.size * tier.row_dim].view(shape)
        report = tier.gather(row_ids, source)
        crossed_bytes = report.transferred_bytes + source.nbytes
        rows = self._lane.empty(shape, torch.bfloat16)
        event = self._lane.copy(source, rows)
        if look is not None:
            look(source)  # beside the copy; afterwards the buffer is anybody's
        self._lane.give(staging, event)
        report = replace(report, transferred_bytes=crossed_bytes)
        return LandedRows(rows, event, report)

    @torch.inference_mode(False)
    def _send_ids(self, table: DeviceTable, row_ids: RowIds) -> LandedRows:
        check_ids(row_ids, table.num_rows)
        num_values = row_ids.nbytes // torch.bfloat16.itemsize  # the buffers count in these
        staging = self._lane.take(num_values)
        source = staging[:num_values].view(torch.int64)
        source.copy_(torch.from_numpy(row_ids))
        ids = self._lane.empty(row_ids.shape, torch.int64)
        event = self._lane.copy(source, ids)
        self._lane.give(staging, event)
        report = TierReport({table.name: row_ids.size}, transferred_bytes=row_ids.nbytes)
        return LandedRows(ids, event, report, table.rows)

    def take(self, landed: LandedRows) -> torch.Tensor:
        """The rows in `dtype` for the calling thread's stream, once the copy is done."""
        if landed.event is not None:
            landed.event.wait()
            self._device.hand_over(landed.rows)
        rows = landed.rows
        if landed.table is not None:
            rows = landed.table.index_select(0, rows)
        return rows if rows.dtype is self.dtype else rows.to(self.dtype)
