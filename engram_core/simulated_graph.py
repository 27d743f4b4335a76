"""SimulatedGraph: records the calls of a step and repeats them, as a CUDA graph does on a GPU.

A replay runs no Python of the step: whatever it decided or brought from the host while it was
recorded stays as it was. What a GPU refuses to capture, or answers with silently wrong numbers,
raises DeviceError here: reading values on the host, shapes that depend on values, lists as
indices, a replay whose inputs nobody refilled, results that are used before a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from engram_core.errors import DeviceError


class SimulatedGraph:
    """The calls of one run (see `engram_core.device.Graph`).

    Args:
        run: called once, now.
        inputs: tensors that must be refilled before every replay.
    """

    def __init__(self, run: Callable[[], None], inputs: Sequence[torch.Tensor]) -> None:
        recorder = _Recorder()
        with torch.inference_mode(), _HostGuard(), recorder:
            run()
        self._calls = recorder.calls
        self._inputs = inputs
        self._seen = [tensor._version for tensor in inputs]
        self._spoil()

    def replay(self) -> None:
        """Repeat the calls; see `engram_core.device.Graph.replay`."""
        versions = [tensor._version for tensor in self._inputs]
        for index, (now, before) in enumerate(zip(versions, self._seen, strict=True)):
            if now == before:
                raise DeviceError(f"input {index} of a graph was not refilled before its replay")
        self._seen = versions
        with torch.inference_mode():
            for call in self._calls:
                call.repeat()

    @torch.inference_mode()
    def _spoil(self) -> None:
        """A capture computes nothing: whoever uses its results without a replay meets NaN."""
        for call in self._calls:
            for tensor in call.results:
                if tensor is not None and tensor.is_floating_point():
                    tensor.fill_(float("nan"))


@dataclass(frozen=True, slots=True)
class _Call:
    """One operation; `results` holds None for what shares memory with its arguments."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: list[torch.Tensor | None]

    def repeat(self) -> None:
        found = _tensors(self.func(*self.args, **self.kwargs))
        for kept, fresh in zip(self.results, found, strict=True):
            if kept is not None:
                kept.copy_(fresh)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Keeps every operation that computes something; views of known memory need no repeating."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        _refuse_dynamic(func, args)
        result = func(*args, **kwargs)
        known = {_address(tensor) for tensor in _tensors([args, kwargs])}
        results = [None if _address(t) in known else t for t in _tensors(result)]
        if func._schema.is_mutable or any(t is not None for t in results):
            self.calls.append(_Call(func, args, kwargs, results))
        return result


class _HostGuard(TorchFunctionMode):
    """Refuses what would stop a capture on a GPU, where tensors are not host memory."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        index = args[1] if func is torch.Tensor.__getitem__ else None
        if func in _HOST_READS or (func is torch.tensor and isinstance(args[0], list | tuple)):
            raise DeviceError(f"{func.__name__} meets the host while a graph is captured")
        if any(isinstance(each, list) for each in (index if isinstance(index, tuple) else [index])):
            raise DeviceError("a list as index meets the host while a graph is captured")
        return func(*args, **(kwargs or {}))


_HOST_READS = {
    torch.from_numpy,
    *(
        getattr(torch.Tensor, name)
        for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__")
    ),
}
_aten: Any = torch.ops.aten


def _refuse_dynamic(func: Any, args: Sequence[Any]) -> None:
    """Refuse operations whose result's shape, or whose result itself, the host must know."""
    is_dynamic = torch.Tag.dynamic_output_shape in func.tags
    if func is _aten.index.Tensor:
        is_dynamic = any(each is not None and each.dtype == torch.bool for each in args[1])
    if (
        is_dynamic
        or torch.Tag.data_dependent_output in func.tags
        or func is _aten.is_nonzero.default
    ):
        raise DeviceError(f"{func} needs values on the host while a graph is captured")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors anywhere in arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _address(tensor: torch.Tensor) -> int | None:
    """The memory that views share; None for a layout that has no address (packed weights)."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else None
