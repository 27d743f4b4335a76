"""FusedGate computes what the module's own operations do: packed, masked, in pieces, shared out."""

import pytest
import torch

from engram_core import compiled, fused_gate
from engram_core.config import EngramConfig
from engram_core.conv_state import ConvState
from engram_core.module import EngramModule

FORMS = {"demo": {"kernel_size": 4}, "v41": {"use_bias": False}}


@pytest.fixture(autouse=True, scope="module")
def loaded():
    assert compiled.load()


def make(form, streams=2, dim=48):
    config = EngramConfig(
        form=form, layer_ids=(1,), orders=(2, 3), num_heads=2, rows_per_head=(11, 11),
        head_dim=8, hidden_size=dim, num_streams=streams, norm_eps=1e-6, **FORMS[form],
    )  # fmt: skip
    module = EngramModule(config, 1, dtype=torch.bfloat16).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5 + 0.5)
    return module


def unfused(module):
    """The same module in torch's operations, in float32: the definition, without their rounding."""
    exact = EngramModule(module.config, 1).requires_grad_(False)
    exact.load_state_dict({k: v.float() for k, v in module.state_dict().items()})
    return exact


def inputs(module, tokens, seed=1):
    generator = torch.Generator().manual_seed(seed)
    config = module.config
    shape = (tokens, config.num_streams, config.hidden_size)
    hidden = torch.randn(shape, generator=generator).bfloat16()
    return hidden, torch.randn(tokens, config.memory_dim, generator=generator).bfloat16()


def close(found, expected):
    assert found.hidden.dtype is torch.bfloat16
    torch.testing.assert_close(found.gates, expected.gates, atol=0.02, rtol=0)
    torch.testing.assert_close(found.hidden.float(), expected.hidden, atol=0.06, rtol=0.02)


@pytest.fixture
def calls(monkeypatch):
    """How often a module went through the kernels."""
    seen = []
    run = fused_gate.FusedGate.__call__
    monkeypatch.setattr(
        fused_gate.FusedGate, "__call__", lambda *given: (seen.append(1), run(*given))[1]
    )
    return seen


@torch.inference_mode()
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("streams", [1, 2])
def test_it_is_the_module(form, streams, calls):
    module = make(form, streams)
    hidden, rows = inputs(module, 21)
    live = torch.arange(21) % 3 > 0
    scale = torch.linspace(0.0, 2.0, 21)
    given = {"lengths": [9, 1, 11], "live": live, "gate_scale": scale}
    found = module(hidden, rows, **given)
    close(found, unfused(module)(hidden.float(), rows.float(), **given))
    assert calls == [1]
    assert not found.gates[~live].any()


@torch.inference_mode()
def test_a_sequence_in_pieces_is_the_whole():
    module = make("demo")
    config = module.config
    hidden, rows = inputs(module, 40)
    whole = module(hidden, rows)
    state = ConvState(config.conv_history, config.conv_channels, max_draft=4)
    pieces = []
    for start, stop in ((0, 17), (17, 18), (18, 24), (24, 40)):
        part = module(hidden[start:stop], rows[start:stop], conv_states=[state])
        pieces.append(part.hidden)
    assert torch.equal(torch.cat(pieces), whole.hidden)
    state.truncate(38)
    again = module(hidden[38:], rows[38:], conv_states=[state])
    assert torch.equal(again.hidden, whole.hidden[38:])


@torch.inference_mode()
@pytest.mark.parametrize("form", FORMS)
def test_threads_change_no_bit(form, monkeypatch):
    module = make(form)
    hidden, rows = inputs(module, 37)
    alone = module(hidden, rows, lengths=[20, 17])
    monkeypatch.setattr(fused_gate, "_SHARED_VALUES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    shared = module(hidden, rows, lengths=[20, 17])
    assert torch.equal(shared.hidden, alone.hidden)
    assert torch.equal(shared.gates, alone.gates)


@torch.inference_mode()
def test_changed_weights_are_met():
    module = make("demo")
    hidden, rows = inputs(module, 6)
    before = module(hidden, rows).hidden
    module.conv_weight.mul_(-2.0)
    after = module(hidden, rows)
    assert not torch.equal(after.hidden, before)
    close(after, unfused(module)(hidden.float(), rows.float()))


@torch.inference_mode()
def test_large_inputs_saturate_and_nan_stays():
    module = make("demo", streams=1)
    hidden, rows = inputs(module, 4)
    rows[1] = 1e30
    rows[2, 0] = torch.nan
    found = module(hidden, rows, lengths=[1, 1, 1, 1]).hidden
    assert bool(torch.isfinite(found[[0, 3]]).all())
    assert bool(torch.isnan(found[2]).all())
