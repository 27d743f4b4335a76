"""Checks that a device keeps the promises that lookups rest on; prints each check.

The body of ``python -m engram_core.device [name]``: name defaults to ``auto``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from engram_core.device import Device, make_device
from engram_core.errors import DeviceError

Check = Callable[[Device], str]
_VALUES = 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one device; returns the exit status, 0 when every check passed."""
    names = list(sys.argv[1:] if arguments is None else arguments)
    if len(names) > 1:
        _say("usage: python -m engram_core.device [auto|cpu|cuda:N|npu:N|simulated]")
        return 2
    try:
        device = make_device(names[0] if names else "auto")
    except DeviceError as error:
        _say(f"FAIL  open: {error}")
        return 1
    _say(f"ok    open: {device.name}")
    return max([_run(check, device) for check in CHECKS])


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


CHECKS: tuple[Check, ...] = (
    check_memory,
    check_compute,
    check_pinned,
    check_copies,
    check_synchronize,
)


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


def _require(ok: bool, complaint: str) -> None:
    if not ok:
        raise DeviceError(complaint)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
