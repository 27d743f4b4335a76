"""A simulated graph repeats what was recorded, and refuses what a real one would get wrong."""

import pytest
import torch

from engram_core.device import make_device
from engram_core.errors import DeviceError
from engram_core.simulated import SimulatedDevice


class Step:
    """Fixed input, a state that every run adds to, and an output."""

    def __init__(self, compute):
        self.input, self.state = torch.ones(4), torch.zeros(4)
        self.output = torch.empty(0)
        self.runs, self._compute = 0, compute

    def run(self):
        self.runs += 1
        self.output = self._compute(self)


def accumulate(step):
    step.state[1:].add_(step.input[1:])
    return torch.cat([step.state.view(2, 2), step.input.view(2, 2) * 2]).transpose(0, 1)


def capture(compute, device=None):
    step = Step(compute)
    device = device or SimulatedDevice()
    return step, device.capture(step.run, [step.input])


def test_a_replay_repeats_the_calls_and_runs_no_python():
    step, graph = capture(accumulate)
    output = step.output
    for value in (2.0, 5.0, 5.0):
        before = step.state.clone()
        step.input.fill_(value)
        graph.replay()
        assert step.state.tolist() == [0, *(before[1:] + value).tolist()]
        expected = torch.cat([step.state.view(2, 2), torch.full((2, 2), 2 * value)])
        assert torch.equal(output, expected.transpose(0, 1))
    assert step.runs == 1


def test_results_are_not_there_before_a_replay():
    step, graph = capture(lambda step: step.input * 2)
    assert step.output.isnan().all()
    step.input.fill_(3)
    graph.replay()
    assert step.output.tolist() == [6] * 4


def test_inputs_must_be_refilled_even_with_the_same_values():
    step, graph = capture(accumulate)
    with pytest.raises(DeviceError, match="input 0 of a graph was not refilled"):
        graph.replay()
    step.input.fill_(1)
    graph.replay()
    with pytest.raises(DeviceError, match="input 0 of a graph was not refilled"):
        graph.replay()
    with torch.inference_mode():
        step.input[:2].copy_(torch.zeros(2))  # a view counts, in any mode
    graph.replay()


def test_a_refill_that_is_still_under_way_is_found():
    device = SimulatedDevice(3600)
    step = Step(lambda step: step.input * 2)
    step.input = device.empty((4,), torch.float32, device.stream())
    graph = device.capture(step.run, [step.input])
    device.copy_async(torch.ones(4), step.input, device.stream())
    with pytest.raises(DeviceError, match="before the copy that fills it was waited for"):
        graph.replay()


@pytest.mark.parametrize(
    "compute",
    [
        lambda step: step.input.sum().item(),
        lambda step: step.input if step.input.sum() > 0 else step.state,
        lambda step: step.input.tolist(),
        lambda step: step.input.cpu(),
        lambda step: torch.from_numpy(step.input.numpy()),
        lambda step: step.input[[0, 1]],
        lambda step: step.input[..., [0, 1]],
        lambda step: step.input * torch.tensor([1.0, 2.0, 3.0, 4.0]),
        lambda step: step.input[step.input > 0],
        lambda step: step.input.nonzero(),
    ],
    ids=[
        "item", "if", "tolist", "cpu", "numpy", "list", "lists", "constant", "mask", "nonzero",
    ],
)  # fmt: skip
def test_what_meets_the_host_is_refused(compute):
    with pytest.raises(DeviceError, match="while a graph is captured"):
        capture(compute)


def test_scalars_and_device_indices_are_fine():
    places = torch.tensor([3, 0])
    step, graph = capture(lambda step: step.input[places] * torch.tensor(2.0) + 1)
    step.input.copy_(torch.arange(4.0))
    graph.replay()
    assert step.output.tolist() == [7, 1]


def test_what_raises_passes():
    def fail(step):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        capture(fail)


def test_the_host_has_no_graphs():
    with pytest.raises(DeviceError, match="accepted: a device that supports graphs"):
        capture(accumulate, make_device("cpu"))
