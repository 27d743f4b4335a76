"""SimulatedDevice finds the mistakes that a real accelerator answers with wrong rows."""

import gc

import pytest
import torch

from engram_core.errors import DeviceError
from engram_core.simulated import SimulatedDevice

NEVER_S = 3600.0


def queued(latency_s, value=1.0):
    """A copy under way: device, source, target and event."""
    device = SimulatedDevice(latency_s)
    stream = device.stream()
    source = torch.full((4,), value)
    target = device.empty((4,), torch.float32, stream)
    return device, source, target, device.copy_async(source, target, stream)


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t + 1,
        lambda t: torch.cat([torch.zeros(1), t]),
        lambda t: t[0],
        lambda t: t.sum().item(),
        lambda t: torch.nn.functional.linear(t, weight=torch.eye(4)),
        lambda t: torch.zeros(4).copy_(t),
    ],
    ids=["add", "cat", "index", "item", "linear", "copy"],
)
def test_use_before_ready_is_detected(use):
    _, _, target, event = queued(NEVER_S)
    assert not event.query()
    with pytest.raises(DeviceError, match="before the copy that fills it was waited for"):
        use(target)


def test_handing_over_before_ready_is_detected():
    device, _, target, _ = queued(NEVER_S)
    with pytest.raises(DeviceError, match="waited for"):
        device.hand_over(target)


def test_even_a_copy_that_has_time_to_land_must_be_waited_for():
    _, _, target, event = queued(0.0)
    with pytest.raises(DeviceError, match="waited for"):
        target.sum()
    event.wait()
    assert target.sum() == 4


def test_a_view_made_earlier_is_guarded_as_well():
    device = SimulatedDevice(NEVER_S)
    stream = device.stream()
    target = device.empty((4,), torch.float32, stream)
    view = target[1:3]
    device.copy_async(torch.ones(4), target, stream)
    with pytest.raises(DeviceError, match="waited for"):
        view.sum()


def test_a_source_that_changes_under_way_is_detected():
    _, source, _, event = queued(0.001)
    source[2] = 5
    with pytest.raises(DeviceError, match="source of a copy was changed"):
        event.wait()


def test_copies_land_in_stream_order():
    device = SimulatedDevice(0.001)
    stream = device.stream()
    targets = [device.empty((1,), torch.float32, stream) for _ in range(5)]
    events = [
        device.copy_async(torch.full((1,), float(i)), target, stream)
        for i, target in enumerate(targets)
    ]
    events[-1].wait()
    assert all(event.query() for event in events)
    assert [target.item() for target in targets] == [0, 1, 2, 3, 4]


def test_synchronize_covers_every_stream():
    device, _, target, event = queued(0.001)
    device.synchronize()
    assert event.query()
    assert target.tolist() == [1] * 4


def test_a_host_tensor_is_no_target():
    device = SimulatedDevice()
    with pytest.raises(DeviceError, match="a tensor of this device"):
        device.copy_async(torch.zeros(1), torch.zeros(1), device.stream())


def test_a_dropped_device_leaves_no_guard_behind():
    device, _, target, event = queued(NEVER_S)
    del device, event
    gc.collect()
    target.zero_()
    assert target.sum() == 0


def computed(latency_s, run=lambda source, target: torch.add(source, 1, out=target)):
    """A computation behind a copy on one stream: device, stream, target and event."""
    device = SimulatedDevice(latency_s)
    stream = device.stream()
    source, target = (device.empty((4,), torch.float32, stream) for _ in range(2))
    device.copy_async(torch.ones(4), source, stream)
    event = device.run_async(lambda: run(source, target), [target], stream)
    return device, stream, target, event


def test_a_computation_comes_behind_the_copies_of_its_stream():
    device, stream, target, event = computed(0.0005)
    again = device.run_async(lambda: target.mul_(2), [target], stream)
    with pytest.raises(DeviceError, match="waited for"):
        target.sum()
    again.wait()
    assert event.query()
    assert target.tolist() == [4] * 4


def test_a_computation_on_what_another_stream_fills_is_detected():
    device = SimulatedDevice(0.0)
    near, far = device.stream(), device.stream()
    source, target = (device.empty((4,), torch.float32, near) for _ in range(2))
    device.copy_async(torch.ones(4), source, far)
    event = device.run_async(lambda: torch.add(source, 1, out=target), [target], near)
    with pytest.raises(DeviceError, match="waited for"):
        event.wait()


def test_computations_write_to_tensors_of_the_device():
    device = SimulatedDevice()
    with pytest.raises(DeviceError, match="host tensor"):
        device.run_async(lambda: None, [torch.zeros(1)], device.stream())
    ran = []
    assert device.run_async(lambda: ran.append(1), [], None).query()
    assert ran == [1]


def test_a_device_dropped_with_computations_under_way_leaves_no_guard_behind():
    device, stream, target, event = computed(NEVER_S)
    del device, stream, event
    gc.collect()
    target.zero_()
    assert target.sum() == 0
