"""AcceleratorDevice: CUDA and Ascend NPU, whose torch modules have the same shape.

Receives its torch module (``torch.cuda`` or ``torch.npu``); imports neither.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from engram_core.cpu_device import check_copy
from engram_core.errors import DeviceError


class _AcceleratorEvent:
    """A recorded event of an accelerator's stream."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def query(self) -> bool:
        """Whether the device has passed this point."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Block the calling thread until the device has passed this point."""
        self._event.synchronize()


class AcceleratorDevice:
    """One accelerator (see `engram_core.device.Device`).

    Args:
        kind: ``"cuda"`` or ``"npu"``.
        index: which one.
        backend: the kind's torch module.
    """

    shares_host_memory = False

    def __init__(self, kind: str, index: int, backend: ModuleType) -> None:
        self.name = f"{kind}:{index}"
        self.torch_device = torch.device(kind, index)
        self.supports_graphs = kind == "cuda"
        self._kind = kind
        self._backend: Any = backend
        self._graph_pool: Any = None

    def stream(self) -> Any:
        """A new side stream of this device."""
        return self._backend.Stream(device=self.torch_device)

    def event(self, stream: Any) -> _AcceleratorEvent:
        """Record an event behind everything queued on `stream`."""
        event = self._backend.Event()
        event.record(stream)
        return _AcceleratorEvent(event)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, stream: Any) -> torch.Tensor:
        """A device tensor from `stream`'s own memory pool.

        Memory of the compute stream's pool may still be read by kernels queued there.
        """
        with self._backend.stream(stream):
            return torch.empty(tuple(shape), dtype=dtype, device=self.torch_device)

    def pinned_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Page-locked host memory: exact size (to a page) on CUDA.

        torch's own pinned allocator rounds up to a power of two, so on CUDA ordinary pages are
        registered instead. torch_npu offers no registration: there, that allocator is used.
        """
        if self._kind != "cuda":
            return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
        flat = _page_aligned(math.prod(shape) * dtype.itemsize, self._register)
        return torch.from_numpy(flat).view(dtype).view(tuple(shape))

    def _register(self, address: int, nbytes: int) -> Any:
        """Page-lock host memory; returns the call that undoes it."""
        runtime = self._backend.cudart()
        with self._backend.device(self.torch_device):
            code = int(runtime.cudaHostRegister(address, nbytes, 0))
        if code != 0:
            raise DeviceError(f"{self.name} refused to page-lock {nbytes} bytes (error {code})")
        return lambda: runtime.cudaHostUnregister(address)

    def copy_async(self, src: torch.Tensor, dst: torch.Tensor, stream: Any) -> _AcceleratorEvent:
        """Queue the copy on `stream` and record an event behind it."""
        check_copy(src, dst)
        with self._backend.stream(stream):
            dst.copy_(src, non_blocking=True)
        return self.event(stream)

    def run_async(
        self, run: Callable[[], None], outputs: Sequence[torch.Tensor], stream: Any
    ) -> _AcceleratorEvent:
        """Launch the kernels on `stream`, whose own order is all that they need."""
        with self._backend.stream(stream):
            run()
        return self.event(stream)

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Keep the tensor's memory until the current stream is done with it."""
        tensor.record_stream(self._backend.current_stream(self.torch_device))

    def capture(self, run: Callable[[], None], inputs: Sequence[torch.Tensor]) -> Any:
        """Capture a CUDA graph; all graphs of this device share one memory pool.

        So the results of one may be overwritten by the replay of another.
        """
        if not self.supports_graphs:
            raise DeviceError(f"{self.name} cannot capture graphs; accepted: a CUDA device")
        with self._backend.device(self.torch_device):
            self._graph_pool = self._graph_pool or self._backend.graph_pool_handle()
            graph = self._backend.CUDAGraph()
            # other threads go on looking rows up meanwhile: only this one is watched
            with self._backend.graph(
                graph, pool=self._graph_pool, capture_error_mode="thread_local"
            ):
                run()
        return graph

    def synchronize(self) -> None:
        """Block until this device is idle."""
        self._backend.synchronize(self.torch_device)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        free, total = self._backend.mem_get_info(self.torch_device)
        return int(free), int(total)


def _page_aligned(nbytes: int, register: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """`nbytes` of registered, page-aligned memory, unregistered before it is freed."""
    page = mmap.PAGESIZE
    span = -(-max(nbytes, 1) // page) * page
    owner = np.empty(span + page, dtype=np.uint8)  # its pages belong to nobody else
    start = -owner.ctypes.data % page
    # numpy runs weak references' callbacks before it frees the memory
    weakref.finalize(owner, register(owner.ctypes.data + start, span)).atexit = False
    return owner[start : start + nbytes]
