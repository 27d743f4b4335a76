"""Several gates on one hidden stream: their sum, whole and in chunks."""

from dataclasses import replace

import pytest
import torch

from engram_core.config import EngramConfig
from engram_core.conv_state import ConvState
from engram_core.module import EngramModule

CONFIG = EngramConfig(
    form="demo", layer_ids=(0,), orders=(2, 3), num_heads=2, rows_per_head=(11, 11), head_dim=4,
    hidden_size=8, num_branches=3, use_bias=False, conv_dilation=2,
)  # fmt: skip


def filled(config, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    module = EngramModule(config, 0, dtype=dtype).requires_grad_(False)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return module


def inputs(tokens, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, *shape, generator=generator) for shape in ((1, 8), (16,))]


@pytest.mark.parametrize("form", ["demo", "v41"])
def test_branches_are_streams_that_see_one_state_and_are_summed(form):
    config = replace(CONFIG, form=form)
    hidden, rows = inputs(7)
    summed, gates = filled(config).contribution(hidden, rows)
    apart, same = filled(replace(config, num_branches=1, num_streams=3)).contribution(
        hidden.expand(-1, 3, -1), rows
    )
    assert summed.shape == (7, 1, 8)
    torch.testing.assert_close(summed, apart.sum(1, keepdim=True))
    torch.testing.assert_close(gates, same)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_with_carried_state_equal_the_whole(chunk):
    module, (hidden, rows) = filled(CONFIG), inputs(11)
    whole = module(hidden, rows).hidden
    state = ConvState(CONFIG.conv_history, CONFIG.conv_channels, max_draft=2)
    parts, start = [], 0
    while start < 11:
        module(hidden[:2], rows[:2], conv_states=[state])  # a draft that is rejected
        state.truncate(start)
        part = slice(start, start + chunk)
        parts.append(module(hidden[part], rows[part], conv_states=[state]).hidden)
        start += chunk
    torch.testing.assert_close(torch.cat(parts), whole)


def test_bfloat16_is_close():
    hidden, rows = inputs(5)
    expected = filled(CONFIG)(hidden, rows).hidden
    found = filled(CONFIG, torch.bfloat16)(hidden.bfloat16(), rows.bfloat16()).hidden
    torch.testing.assert_close(found.float(), expected, atol=5e-2, rtol=2e-2)
