"""SimulatedDevice: an accelerator's timing on host memory, for tests without one.

A copy lands only after a latency, in stream order, and so does what is computed on a side stream.
Reading its target before the thread saw its event done, or changing its source before it landed,
raises DeviceError: the two mistakes that real accelerators answer with silently wrong rows. Its
graphs are `engram_core.simulated_graph`'s.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from engram_core.cpu_device import check_copy
from engram_core.errors import DeviceError
from engram_core.simulated_graph import SimulatedGraph


class SimulatedDevice:
    """A device whose copies take time (see `engram_core.device.Device`).

    Args:
        latency_s: how long after its predecessor a copy lands.
    """

    name = "simulated"
    torch_device = torch.device("cpu")
    shares_host_memory = False
    supports_graphs = True

    def __init__(self, latency_s: float = 0.001) -> None:
        self._latency_s = latency_s
        self._streams: list[_Stream] = []
        self._compute = self.stream()

    def stream(self) -> _Stream:
        """A new timeline."""
        stream = _Stream(self._latency_s)
        self._streams.append(stream)
        return stream

    def event(self, stream: _Stream | None) -> _Event:
        """A point behind every copy queued on `stream` so far."""
        stream = stream or self._compute
        return _Event(stream, stream.queued)

    def empty(self, shape: Sequence[int], dtype: torch.dtype, stream: _Stream) -> torch.Tensor:
        """A tensor that refuses to be read while a copy into it is under way."""
        return torch.empty(tuple(shape), dtype=dtype).as_subclass(_GuardedTensor)

    def pinned_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A host tensor."""
        return torch.empty(tuple(shape), dtype=dtype)

    def copy_async(self, src: torch.Tensor, dst: torch.Tensor, stream: _Stream | None) -> _Event:
        """Queue a copy that lands after the latency.

        Compute comes behind the copies of its own stream, so what they fill can be read at once;
        their sources must be left alone all the same.
        """
        check_copy(src, dst)
        if stream is None:
            dst.copy_(src)
            self._compute.queue(_Upload(src))
            return self.event(self._compute)
        if not isinstance(dst, _GuardedTensor):
            raise DeviceError("dst is a host tensor; accepted: a tensor of this device")
        stream.queue(_Copy(src, dst, stream))
        return self.event(stream)

    def run_async(
        self, run: Callable[[], None], outputs: Sequence[torch.Tensor], stream: _Stream | None
    ) -> _Event:
        """Queue a computation that happens after the latency.

        Tensors that another stream is still filling are refused then.
        """
        if stream is None:
            run()
            return self.event(self._compute)
        if not all(isinstance(each, _GuardedTensor) for each in outputs):
            raise DeviceError("outputs hold a host tensor; accepted: tensors of this device")
        stream.queue(_Computation(run, outputs, stream))
        return self.event(stream)

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Refuse a tensor that is still being filled."""
        _refuse_unready([tensor])

    def capture(self, run: Callable[[], None], inputs: Sequence[torch.Tensor]) -> SimulatedGraph:
        """Record the calls of `run`."""
        return SimulatedGraph(run, inputs)

    def synchronize(self) -> None:
        """Wait for every copy."""
        for stream in self._streams:
            self.event(stream).wait()

    def memory(self) -> tuple[int, int]:
        """As much as anyone asks for."""
        return 2**40, 2**40


class _Upload:
    """A copy under way; remembers its source as it was."""

    def __init__(self, src: torch.Tensor) -> None:
        self._src, self._before = src, src.clone()

    def land(self) -> None:
        if not torch.equal(_bits(self._src), _bits(self._before)):
            raise DeviceError("the source of a copy was changed before the copy landed")


class _Copy(_Upload):
    """A copy on a side stream, whose target must not be read before it has landed."""

    def __init__(self, src: torch.Tensor, dst: torch.Tensor, stream: _Stream) -> None:
        super().__init__(src)
        self._dst = dst.as_subclass(torch.Tensor)
        self._mark_ready = _mark_unready(self, dst, stream)

    def land(self) -> None:
        super().land()
        with torch.inference_mode():  # whoever looks lands it, in whatever mode it was made
            self._dst.copy_(self._src)
        self._mark_ready()


class _Computation:
    """Work on a side stream, whose outputs must not be read before it is done."""

    def __init__(
        self, run: Callable[[], None], outputs: Sequence[torch.Tensor], stream: _Stream
    ) -> None:
        self._run, self._stream = run, stream
        self._mark_ready = [_mark_unready(self, each, stream) for each in outputs]

    def land(self) -> None:
        before, _RUNNING.stream = getattr(_RUNNING, "stream", None), self._stream.number
        try:
            with torch.inference_mode():
                self._run()
        finally:
            _RUNNING.stream = before
        for mark in self._mark_ready:
            mark()


class _Stream:
    """Copies and computations in order, each landing a latency after the one before it."""

    def __init__(self, latency_s: float) -> None:
        self.number = next(_STREAM_NUMBERS)
        self.queued = 0
        self._latency_s = latency_s
        self._landed = 0
        self._pending: list[tuple[float, _Upload | _Computation]] = []
        self._free_s = 0.0
        self._lock = threading.Lock()

    def queue(self, copy: _Upload | _Computation) -> None:
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + self._latency_s
            self._pending.append((self._free_s, copy))
            self.queued += 1

    def due_s(self, position: int) -> float:
        """When the copy at `position` lands; in the past when it already did."""
        with self._lock:
            index = position - self._landed - 1
            return self._pending[index][0] if index >= 0 else 0.0

    def advance(self, position: int) -> bool:
        """Land what is due; whether the copy at `position` has landed."""
        with self._lock:
            while self._pending and self._pending[0][0] <= time.monotonic():
                _, copy = self._pending.pop(0)
                self._landed += 1
                copy.land()
            return self._landed >= position


class _Event:
    """A position on a stream; copies land when somebody looks."""

    def __init__(self, stream: _Stream, position: int) -> None:
        self._stream, self._position = stream, position

    def query(self) -> bool:
        return self._stream.advance(self._position)

    def wait(self) -> None:
        while not self.query():
            time.sleep(max(0.0, self._stream.due_s(self._position) - time.monotonic()))


class _Unready:
    """Memory that streams are still filling, by address; views share it."""

    def __init__(self) -> None:
        self._fillings: dict[int, Counter[int]] = {}  # address -> number of a stream -> fillings
        self._lock = threading.RLock()  # what is dropped while it is held is removed at once

    def add(self, address: int, stream: int) -> None:
        with self._lock:
            self._fillings.setdefault(address, Counter())[stream] += 1

    def remove(self, address: int, stream: int) -> None:
        with self._lock:
            fillings = self._fillings[address]
            fillings[stream] -= 1
            if not +fillings:
                del self._fillings[address]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a stream other than the one that asks, if one does, still fills it."""
        asking = getattr(_RUNNING, "stream", None)
        with self._lock:
            fillings = self._fillings.get(_address(tensor), Counter())
            return any(count > 0 and each != asking for each, count in fillings.items())


_STREAM_NUMBERS = itertools.count()


class _GuardedTensor(torch.Tensor):
    """A device tensor: every operation first checks that no copy into it is under way."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in _METADATA:
            _refuse_unready(_tensors([args, kwargs or {}]))
        plain: Any = super()
        return plain.__torch_function__(func, types, args, kwargs or {})


_UNREADY = _Unready()
_RUNNING = threading.local()  # number of the stream whose computation this thread lands, if any
# what may be asked of a tensor whose values are not there yet
_METADATA = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device")),
    torch.Tensor.as_subclass,
    torch.Tensor.untyped_storage,
    torch.Tensor.numel,
    torch.Tensor.dim,
}


def _mark_unready(
    owner: object, tensor: torch.Tensor, stream: _Stream
) -> weakref.finalize[[int, int], object]:
    """Guard a tensor until the returned call, or until the owner is dropped with its device."""
    address = _address(tensor)
    _UNREADY.add(address, stream.number)
    return weakref.finalize(owner, _UNREADY.remove, address, stream.number)


def _refuse_unready(tensors: Iterable[torch.Tensor]) -> None:
    if any(_UNREADY.holds(tensor) for tensor in tensors):
        raise DeviceError("a tensor was used before the copy that fills it was waited for")


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """Device tensors anywhere in an operation's arguments."""
    if isinstance(value, _GuardedTensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _address(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage().data_ptr()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
