"""StaticStep gives what EngramStep gives, from tensors that never move."""

import pytest
import torch
from memories import LAYERS, NUM_IDS, small_memory

from engram_core.conv_state import ConvState
from engram_core.cpu_cores import CpuCores
from engram_core.device import make_device
from engram_core.prefetch import Prefetcher
from engram_core.static_step import StaticStep
from engram_core.step import EngramStep, RowSpan

SIZE = 4


class Case:
    """Sequences in their decode phase, stepped eagerly and through a StaticStep."""

    def __init__(self, form, **memory):
        self.memory = small_memory(form=form, **memory)
        self.prefetcher = Prefetcher(make_device("cpu"), cores=CpuCores(1, "a test"))
        self.static = StaticStep(self.memory, SIZE, torch.device("cpu"))
        self.addresses = [tensor.data_ptr() for tensor in self.static.inputs]
        self.generator = torch.Generator().manual_seed(1)

    def states(self, count):
        config = self.memory.config
        if not config.conv_history:
            return [None] * count
        return [
            {layer: ConvState(config.conv_history, config.conv_channels) for layer in LAYERS}
            for _ in range(count)
        ]

    def step(self, live, scales, states):
        ids = torch.randint(0, NUM_IDS, (len(live), 4), generator=self.generator).tolist()
        windows = self.memory.hasher.ragged_windows(
            [each[-1] for each in ids], [1] * len(ids), [each[:-1] for each in ids]
        )
        ticket = self.prefetcher.submit_step(self.memory, windows)
        spans = [RowSpan(ticket, i, i + 1) if on else None for i, on in enumerate(live)]
        pair = [EngramStep(self.memory, [1] * len(live), spans, scales, each) for each in states]
        return ticket, *pair

    def hidden(self):
        return torch.randn(SIZE, 1, 8, generator=self.generator)


@pytest.mark.parametrize("form", ["v41", "demo"])
@pytest.mark.parametrize("hit_orders", [(), (2, 3)])
@pytest.mark.parametrize("branches", [1, 3])
def test_step_after_step_equals_the_eager_one(form, hit_orders, branches):
    case = Case(form, min_hit_orders=hit_orders, num_branches=branches, conv_dilation=2)
    eager_states, static_states = case.states(SIZE), case.states(SIZE)
    turns = [
        ([True] * 4, [1.0] * 4),
        ([True] * 4, [1.0, 0.5, 0.0, 2.0]),
        ([True, False, True], [1.0] * 3),  # fewer sequences, one of them silent
        ([True], [0.25]),
        ([True] * 4, [1.0] * 4),
    ]
    for live, scales in turns:
        count = len(live)
        ticket, eager, filled = case.step(
            live, scales, (eager_states[:count], static_states[:count])
        )
        case.static.fill(filled)
        for layer in LAYERS:
            hidden = case.hidden()
            expected = eager.apply(layer, hidden[:count])
            assert torch.allclose(case.static.apply(layer, hidden)[:count], expected, atol=1e-6)
        case.static.finish(filled)
        for layer in LAYERS:
            assert torch.allclose(filled.gates[layer], eager.gates[layer], atol=1e-6)
            for one, other in zip(eager_states, static_states, strict=True):
                if one is not None:
                    assert one[layer].length == other[layer].length
                    assert torch.allclose(one[layer].history, other[layer].history, atol=1e-6)
        assert {w.layer for w in filled.waits} == set(LAYERS)
        ticket.release()
    assert [tensor.data_ptr() for tensor in case.static.inputs] == case.addresses


def test_places_without_a_sequence_keep_their_very_bits():
    case = Case("v41")
    hidden = case.hidden()
    hidden[0, 0, 0] = -0.0
    for layer in LAYERS:
        found = case.static.apply(layer, hidden)
        assert torch.equal(found.view(torch.int32), hidden.view(torch.int32))
