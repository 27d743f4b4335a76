"""Device: cpu, cuda:N, npu:N or simulated behind one protocol.

The only importer of torch_npu, and only when an NPU is asked for. Knows streams, events and host
staging; knows no rows and no models. ``python -m engram_core.device [name]`` checks a device.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol, cast

import torch

from engram_core.accelerator import AcceleratorDevice
from engram_core.cpu_device import CpuDevice
from engram_core.errors import DeviceError

ACCEPTED = 'accepted: "auto", "cpu", "cuda", "cuda:N", "npu", "npu:N" or "simulated"'


class Event(Protocol):
    """A point on a stream."""

    def query(self) -> bool:
        """Whether everything before this point is done."""

    def wait(self) -> None:
        """Block the calling thread until everything before this point is done."""


class Graph(Protocol):
    """Captured work of a device."""

    def replay(self) -> None:
        """Queue the work again behind what the calling thread's current stream holds.

        It reads and writes the very memory that it did when it was captured.
        """


class Device(Protocol):
    """Where compute runs, and how rows get there.

    Attributes of implementations are fixed after construction; all methods may be called from
    several threads. A stream is an opaque object that belongs to its device; None stands for the
    calling thread's current stream, the one that compute uses.
    """

    @property
    def name(self) -> str:
        """For example ``"cuda:0"``."""

    @property
    def torch_device(self) -> torch.device:
        """The device that tensors of compute live on."""

    @property
    def shares_host_memory(self) -> bool:
        """True when host tensors are device tensors: rows need no copy."""

    @property
    def supports_graphs(self) -> bool:
        """Whether `capture` works here."""

    def stream(self) -> Any:
        """A new side stream, beside the one that compute uses."""

    def event(self, stream: Any) -> Event:
        """A point after everything queued on `stream` so far."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype, stream: Any) -> torch.Tensor:
        """An uninitialised device tensor that `stream` fills."""

    def pinned_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised host tensor that `copy_async` reads without an extra copy."""

    def copy_async(self, src: torch.Tensor, dst: torch.Tensor, stream: Any) -> Event:
        """Queue host `src` -> device `dst` on `stream`.

        `src` must not change, and `dst` must not be read, before the returned event is done.

        Raises:
            DeviceError: shapes or dtypes differ.
        """

    def run_async(
        self, run: Callable[[], None], outputs: Sequence[torch.Tensor], stream: Any
    ) -> Event:
        """Queue on `stream` what `run` computes out of device tensors.

        Args:
            run: called once, now or later; must not read values on the host. What it reads is
                ready, or filled by `stream` before; what it makes is for `stream` alone.
            outputs: tensors that it writes into. They must not be read outside of `stream` before
                the returned event is done.
            stream: one of this device's.
        """

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Say that the calling thread's current stream uses a tensor of a side stream."""

    def capture(self, run: Callable[[], None], inputs: Sequence[torch.Tensor]) -> Graph:
        """Record what `run` does on the current stream; its results are there after a replay.

        `run` was called once before, so that whatever libraries set up is set up. It must not
        read values on the host. Tensors that it makes live as long as somebody holds them or the
        graph.

        Args:
            run: called once.
            inputs: tensors that the caller refills before every replay.

        Raises:
            DeviceError: this device has no graphs. What `run` or the capture raises passes.
        """

    def synchronize(self) -> None:
        """Block until the device is idle."""

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""


def make_device(name: str) -> Device:
    """The device called `name`; ``"auto"`` takes an NPU, then CUDA, then the CPU.

    Raises:
        DeviceError: unknown name, or the device is not there.
    """
    if name == "auto":
        return make_device(_best_kind())
    if name == "cpu":
        return CpuDevice()
    if name == "simulated":
        return cast(Device, importlib.import_module("engram_core.simulated").SimulatedDevice())
    match = re.fullmatch(r"(cuda|npu)(?::(\d{1,4}))?", name)
    if match is None:
        raise DeviceError(f"device is {name!r}; {ACCEPTED}")
    return _accelerator(match[1], int(match[2] or 0))


def _best_kind() -> str:
    for kind in ("npu", "cuda"):
        if why_not(kind) is None:
            return kind
    return "cpu"


def why_not(kind: str) -> str | None:
    """Why ``"cuda"`` or ``"npu"`` cannot be used here, for people; None when it can."""
    try:
        if _backend(kind).is_available():
            return None
    except DeviceError as error:
        return str(error)
    if kind == "cuda" and torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a build with it"
    hiding = "CUDA_VISIBLE_DEVICES" if kind == "cuda" else "ASCEND_RT_VISIBLE_DEVICES"
    return f"no device is found; its driver is missing or {hiding} hides it"


def _accelerator(kind: str, index: int) -> AcceleratorDevice:
    backend = _backend(kind)
    reason = why_not(kind)
    if reason is not None:
        raise DeviceError(f'device "{kind}" is not available: {reason}; {ACCEPTED}')
    count = backend.device_count()
    if index >= count:
        raise DeviceError(
            f'device "{kind}:{index}" does not exist; accepted: {kind}:0 to {kind}:{count - 1}'
        )
    return AcceleratorDevice(kind, index, backend)


def _backend(kind: str) -> ModuleType:
    """torch.cuda or torch.npu; torch_npu adds the latter when it is imported."""
    if kind == "npu":
        try:
            importlib.import_module("torch_npu")
        except (ImportError, OSError, RuntimeError) as error:
            raise DeviceError(
                f'device "npu" needs torch_npu and CANN, which cannot be loaded: {error}'
            ) from error
    return cast(ModuleType, getattr(torch, kind))


if __name__ == "__main__":
    from engram_core.device_check import main

    raise SystemExit(main())
