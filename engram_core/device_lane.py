"""DeviceLane: one way onto a device, a side stream with the pinned memory that its copies read.

Knows no rows: it moves values and queues computations behind them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from engram_core.device import Device, Event


class DeviceLane:
    """A side stream, and pinned bf16 buffers, each reused once the copy that reads it is done.

    Args:
        device: where the lane leads.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._stream = device.stream()
        self._buffers: list[tuple[torch.Tensor, Event]] = []
        self._lock = threading.Lock()

    def take(self, num_values: int) -> torch.Tensor:
        """A flat buffer of at least `num_values`; page-locking is slow, so old ones come first."""
        with self._lock:
            for index, (buffer, event) in enumerate(self._buffers):
                if buffer.numel() >= num_values and event.query():
                    return self._buffers.pop(index)[0]
            # too small for today's batches: a larger one takes its place
            stale = next((i for i, (_, event) in enumerate(self._buffers) if event.query()), None)
            if stale is not None:
                self._buffers.pop(stale)
        return self.device.pinned_empty((num_values,), torch.bfloat16)

    def give(self, buffer: torch.Tensor, event: Event) -> None:
        """Return a buffer that may be overwritten after `event`; smallest first in the list."""
        with self._lock:
            self._buffers.append((buffer, event))
            self._buffers.sort(key=lambda held: held[0].numel())

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised device tensor that this lane fills."""
        return self.device.empty(shape, dtype, self._stream)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Event:
        """Queue pinned `source` -> device `target` (see `Device.copy_async`)."""
        return self.device.copy_async(source, target, self._stream)

    def run(self, run: Callable[[], None], outputs: Sequence[torch.Tensor]) -> Event:
        """Queue a computation behind the copies so far (see `Device.run_async`)."""
        return self.device.run_async(run, outputs, self._stream)

    def event(self) -> Event:
        """A point behind all that was queued so far."""
        return self.device.event(self._stream)
