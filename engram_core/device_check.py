"""Checks that a device keeps the promises that serving rests on; prints each check.

The body of ``python -m engram_core.device [name]``: name defaults to ``auto``. Lines that begin
with ``info`` help to read the others; the exit status is 0 when no line begins with ``FAIL``.
"""

from __future__ import annotations

import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engram_core.device import Device, Event, make_device, why_not
from engram_core.device_operations import OPERATIONS, disagreements
from engram_core.errors import DeviceError

Check = Callable[[Device], str]
_VALUES = 2**20
_BLOCK_VALUES = 2**25  # 64 MiB in bfloat16
_ROW_VALUES = 16 * 64  # the rows of one token in one layer


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one device; returns the exit status, 0 when every check passed."""
    names = list(sys.argv[1:] if arguments is None else arguments)
    if len(names) > 1:
        _say("usage: python -m engram_core.device [auto|cpu|cuda:N|npu:N|simulated]")
        return 2
    name = names[0] if names else "auto"
    _say(f"info  torch {torch.__version__}, Python {platform.python_version()}")
    if name == "auto":
        for kind in ("npu", "cuda"):
            _say(f"info  {kind}: {why_not(kind) or 'available'}")
    try:
        device = make_device(name)
    except DeviceError as error:
        _say(f"FAIL  open: {error}")
        return 1
    _say(f"ok    open: {device.name}{_hardware(device)}")
    return max([_run(check, device) for check in CHECKS])


def _hardware(device: Device) -> str:
    """What the driver calls it, where it says so."""
    backend = getattr(torch, device.torch_device.type, None)
    name = getattr(backend, "get_device_name", None)
    if device.shares_host_memory or name is None:
        return ""
    return f" ({name(device.torch_device)})"


def check_memory(device: Device) -> str:
    """Free and total memory are plausible."""
    free, total = device.memory()
    _require(0 < free <= total, f"free {free} of {total} bytes")
    return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def check_compute(device: Device) -> str:
    """A small product has its exact value."""
    ones = torch.ones(64, 64, device=device.torch_device)
    device.synchronize()
    _require(bool((ones @ ones == 64).all()), "a product of ones is wrong")
    return "64 x 64 product is exact"


def check_pinned(device: Device) -> str:
    """Host staging of an odd size can be written and read."""
    staging = device.pinned_empty((1000, 7), torch.bfloat16)
    staging.fill_(1.5)
    _require(bool((staging == 1.5).all()), "staging does not keep its values")
    kind = "pinned" if staging.is_pinned() else "ordinary"
    return f"{staging.nbytes} bytes of {kind} host memory"


def check_copies(device: Device) -> str:
    """Copies on a side stream bring every bit, in order, once their events are done."""
    stream = device.stream()
    sources = [_filled(device, float(index)) for index in range(8)]
    targets = [device.empty((_VALUES,), torch.bfloat16, stream) for _ in sources]
    events = [
        device.copy_async(source, target, stream)
        for source, target in zip(sources, targets, strict=True)
    ]
    for index, (event, target) in enumerate(zip(events, targets, strict=True)):
        event.wait()
        _require(event.query(), "an event that was waited for is not done")
        device.hand_over(target)
        _require(bool((target == float(index)).all()), f"copy {index} brought wrong values")
    return f"{len(sources)} copies of {sources[0].nbytes} bytes"


def check_synchronize(device: Device) -> str:
    """Synchronizing waits for a side stream as well."""
    stream = device.stream()
    event = device.copy_async(
        _filled(device, 2.0), device.empty((_VALUES,), torch.bfloat16, stream), stream
    )
    device.synchronize()
    _require(event.query(), "a copy is under way after synchronize")
    return "side streams are covered"


def check_operations(device: Device) -> str:
    """What the server computes with exists, and agrees with the CPU."""
    found = disagreements(device.torch_device)
    _require(not found, "; ".join(found))
    return f"{len(OPERATIONS)} operations agree with the CPU"


def check_graphs(device: Device) -> str:
    """A captured step reads its refilled input, also when it was captured beside a busy thread."""
    if not device.supports_graphs:
        return "none on this device, steps run eagerly"
    value = torch.ones(1024, device=device.torch_device)
    state, results = torch.zeros_like(value), [value]

    def step() -> None:
        results[0] = state.add_(value) * 2

    step()
    with _BusyThread(device):
        graph = device.capture(step, [value])
    state.zero_()
    for number in (3.0, 4.0):
        value.fill_(number)
        graph.replay()
    device.synchronize()
    _require(bool((results[0] == 14).all()), "a replayed graph gives wrong values")
    return "captured beside a thread that copies, replayed with new inputs"


def check_speed(device: Device) -> str:
    """How fast rows get here: a large copy's rate, a token's rows' time, and what compute hides."""
    if device.shares_host_memory:
        return "rows need no copy"
    stream = device.stream()
    block = _transfer(device, stream, _BLOCK_VALUES)
    row = _transfer(device, stream, _ROW_VALUES)
    copy_s = _median_s(lambda: block().wait(), 5)
    row_s = _median_s(lambda: row().wait(), 50)
    compute = _busy_compute(device, copy_s)
    compute_s = _median_s(_all(compute, device.synchronize), 3)
    both_s = _median_s(_all(block, compute, device.synchronize), 3)
    hidden = (copy_s + compute_s - both_s) / min(copy_s, compute_s)
    return (
        f"{2 * _BLOCK_VALUES / copy_s / 1e9:.1f} GB/s from pinned memory, a token's rows in "
        f"{1e6 * row_s:.0f} us, {min(max(hidden, 0.0), 1.0):.0%} of a copy hidden behind compute"
    )


CHECKS: tuple[Check, ...] = (
    check_memory,
    check_compute,
    check_operations,
    check_pinned,
    check_copies,
    check_synchronize,
    check_graphs,
    check_speed,
)


class _BusyThread:
    """Copies on a stream of its own until the block ends, as a lookup worker does."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stop, self._started = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        self._started.wait()

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise DeviceError(f"a copy failed beside a capture: {self._error}")

    def _work(self) -> None:
        try:
            stream = self._device.stream()
            while not self._stop.is_set():
                _transfer(self._device, stream, _ROW_VALUES)().wait()
                self._started.set()
        except Exception as error:  # noqa: BLE001 - the other thread reports it
            self._error = error
        finally:
            self._started.set()


def _run(check: Check, device: Device) -> int:
    name = check.__name__.removeprefix("check_")
    try:
        result = check(device)
    except Exception as error:  # noqa: BLE001 (a broken driver raises anything; the report says so)
        _say(f"FAIL  {name}: {error}")
        return 1
    _say(f"ok    {name}: {result}")
    return 0


def _filled(device: Device, value: float) -> torch.Tensor:
    return device.pinned_empty((_VALUES,), torch.bfloat16).fill_(value)


def _transfer(device: Device, stream: Any, num_values: int) -> Callable[[], Event]:
    """A call that copies so many values to the device; returns the copy's event."""
    source = device.pinned_empty((num_values,), torch.bfloat16).fill_(1.0)
    target = device.empty((num_values,), torch.bfloat16, stream)
    return lambda: device.copy_async(source, target, stream)


def _busy_compute(device: Device, wanted_s: float) -> Callable[[], object]:
    """A call that queues products which take about `wanted_s`."""
    matrix = torch.ones(1024, 1024, device=device.torch_device)

    def products(count: int) -> Callable[[], object]:
        return _all(*[lambda: torch.mm(matrix, matrix)] * count)

    once_s = _median_s(_all(products(4), device.synchronize), 3) / 4
    return products(max(1, min(round(wanted_s / once_s), 1000)))


def _all(*calls: Callable[[], object]) -> Callable[[], object]:
    """One call that makes several."""
    return lambda: [call() for call in calls]


def _median_s(run: Callable[[], object], count: int) -> float:
    """Median seconds of a call, after one that is not counted."""
    times = []
    for _ in range(count + 1):
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times[1:])


def _require(ok: bool, complaint: str) -> None:
    if not ok:
        raise DeviceError(complaint)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
