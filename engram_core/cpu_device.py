"""CpuDevice: compute on the host; copies happen at once and events are always done."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from engram_core.errors import DeviceError
from engram_core.host_memory import free_host_memory


class _DoneEvent:
    """An event that has always happened."""

    def query(self) -> bool:
        """True."""
        return True

    def wait(self) -> None:
        """Return at once."""


class CpuDevice:
    """The host as a device (see `engram_core.device.Device`)."""

    name = "cpu"
    torch_device = torch.device("cpu")
    shares_host_memory = True
    supports_graphs = False

    def stream(self) -> None:
        """The host has no side streams."""

    def event(self, stream: Any) -> _DoneEvent:
        """An event that is done."""
        return _DoneEvent()

    def empty(self, shape: Sequence[int], dtype: torch.dtype, stream: Any) -> torch.Tensor:
        """An uninitialised host tensor."""
        return torch.empty(tuple(shape), dtype=dtype)

    def pinned_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An ordinary host tensor: nothing needs pinned memory here."""
        return torch.empty(tuple(shape), dtype=dtype)

    def copy_async(self, src: torch.Tensor, dst: torch.Tensor, stream: Any) -> _DoneEvent:
        """Copy now."""
        check_copy(src, dst)
        dst.copy_(src)
        return _DoneEvent()

    def run_async(
        self, run: Callable[[], None], outputs: Sequence[torch.Tensor], stream: Any
    ) -> _DoneEvent:
        """Compute now."""
        run()
        return _DoneEvent()

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Nothing to do without streams."""

    def capture(self, run: Callable[[], None], inputs: Sequence[torch.Tensor]) -> NoReturn:
        """Raise DeviceError: there are no graphs here."""
        raise DeviceError("cpu cannot capture graphs; accepted: a device that supports graphs")

    def synchronize(self) -> None:
        """The host is always idle here."""

    def memory(self) -> tuple[int, int]:
        """Available and total bytes of host memory."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return free_host_memory().free_bytes, total


def check_copy(src: torch.Tensor, dst: torch.Tensor) -> None:
    """Refuse a copy that would convert or broadcast.

    Raises:
        DeviceError: shapes or dtypes differ.
    """
    if src.shape != dst.shape or src.dtype != dst.dtype:
        raise DeviceError(
            f"cannot copy {tuple(src.shape)} {src.dtype} to {tuple(dst.shape)} {dst.dtype}; "
            "accepted: equal shapes and dtypes"
        )
