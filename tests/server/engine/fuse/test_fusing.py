"""Layers are replaced only when their numbers are the same, and leave nothing behind."""

import gc
import weakref

import pytest
import torch
from models import random_model, tiny_llama
from torch import nn
from transformers import AutoConfig

from engram_core.errors import ConfigError, UnsupportedModelError
from server.engine.fuse.fused_layer import FusedLayer
from server.engine.fuse.fusing import fuse_layers
from server.engine.fuse.report import FuseReport
from server.engine.limits import EngineLimits
from server.engine.linear.packed import PackedLinear, can_pack
from server.engine.self_check import check_model
from server.engine.served import make_served
from server.engine.tuning import Tuning

MAX_MODEL_LEN = 64
TORCH = Tuning(kernels="torch")


def fuse(model):
    return fuse_layers(model, check_model(model, MAX_MODEL_LEN))


def random_of(kind, **change):
    settings = {
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0, "head_dim": 8, **change,
    }  # fmt: skip
    return random_model(AutoConfig.for_model(kind, **settings))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_layer_of_a_llama_is_fused(dtype):
    model = tiny_llama().to(dtype)
    assert fuse(model) == FuseReport(4, 4, None)
    assert all(type(layer) is FusedLayer for layer in model.model.layers)
    assert not any(layer.training for layer in model.model.layers)


def test_the_weights_of_the_originals_are_freed():
    model = tiny_llama()
    number = sum(parameter.numel() for parameter in model.parameters())
    gone = [
        weakref.ref(linear.weight)
        for layer in model.model.layers
        for linear in (
            *(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            *(layer.mlp.gate_proj, layer.mlp.up_proj),
        )
    ]
    originals = [weakref.ref(layer) for layer in model.model.layers]
    fuse(model)
    gc.collect()
    assert [each() for each in (*gone, *originals)] == [None] * (5 * 4 + 4)
    assert sum(parameter.numel() for parameter in model.parameters()) == number


class Doubled(nn.Module):
    """Looks like an RMSNorm and is none."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return 1.01 * nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_that_computes_something_else_stays(dtype):
    model = tiny_llama().to(dtype)
    odd = model.model.layers[2]
    odd.post_attention_layernorm = Doubled(odd.post_attention_layernorm)
    if dtype == torch.bfloat16:  # beyond the roundings of eight bits
        odd.mlp.down_proj.weight *= 4
        odd.post_attention_layernorm.forward = lambda x: 1.2 * x
    report = fuse(model)
    assert (report.num_fused, report.total) == (3, 4)
    accepted = "1e-05" if dtype == torch.float32 else "0.03125"
    words = "layer 2 computes something else: a relative difference of "
    assert report.reason.startswith(words)
    assert report.reason.endswith(f", accepted: {accepted}")
    assert model.model.layers[2] is odd


@pytest.mark.parametrize(
    ("kind", "change", "num_fused"),
    [
        ("gemma", {}, 0),  # the norm's weight is 1 + w
        ("granite", {"residual_multiplier": 0.2}, 0),
        ("helium", {}, 0),  # rotates pairs of neighbours
        ("smollm3", {"layer_types": ["full_attention"] * 4}, 3),  # every fourth does not rotate
    ],
)
def test_differences_that_only_the_numbers_show(kind, change, num_fused):
    report = fuse(random_of(kind, **change))
    assert report.num_fused == num_fused
    assert "computes something else" in report.reason


def test_a_layer_that_cannot_be_computed_fused_stays():
    model = tiny_llama().bfloat16()
    rotary = model.model.rotary_emb
    true_forward = rotary.forward
    # as some models do, which cast back after the rotation
    rotary.forward = lambda *a, **k: tuple(each.float() for each in true_forward(*a, **k))
    report = check_model(tiny_llama().bfloat16(), MAX_MODEL_LEN)
    for layer in model.model.layers:
        layer.forward = _with_cast_rotary(layer.forward)
    model.set_attn_implementation("engram_paged")
    assert fuse_layers(model, report).reason.startswith("layer 0 cannot be computed fused: ")


def _with_cast_rotary(forward):
    def cast(*args, position_embeddings, **kwargs):
        halves = tuple(each.bfloat16() for each in position_embeddings)
        return forward(*args, position_embeddings=halves, **kwargs)

    return cast


def test_partial_rotation():
    """Llama's layers with the rotary embedding of fewer dims than a head has."""
    model = tiny_llama()
    for layer in model.model.layers:
        layer.self_attn.forward = _rotating_half(layer.self_attn)
    true_forward = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda *a, **k: tuple(
        torch.cat((each[..., :2], each[..., :2]), -1) for each in true_forward(*a, **k)
    )
    assert fuse(model) == FuseReport(4, 4, None)


def _rotating_half(attention):
    true_forward = type(attention).forward

    def forward(hidden_states, position_embeddings, **kwargs):
        # the rotation of the first four of eight dims, written as one of permuted heads of eight
        cos, sin = position_embeddings
        order = torch.tensor([0, 1, 4, 5, 2, 3, 6, 7])
        rows = torch.cat([8 * head + order for head in range(4)])
        ones, zeros = torch.ones_like(cos[..., :2]), torch.zeros_like(sin[..., :2])
        wide_cos = torch.cat((cos[..., :2], ones, cos[..., 2:], ones), -1)
        wide_sin = torch.cat((sin[..., :2], zeros, sin[..., 2:], zeros), -1)
        before = attention.q_proj.weight.data, attention.k_proj.weight.data
        attention.q_proj.weight.data = before[0][rows]
        attention.k_proj.weight.data = before[1][rows[:16]]
        try:
            return true_forward(attention, hidden_states, (wide_cos, wide_sin), **kwargs)
        finally:
            attention.q_proj.weight.data, attention.k_proj.weight.data = before

    return forward


def test_hooks_carry_over_and_can_be_removed():
    model, seen = tiny_llama(), []
    layer = model.model.layers[1]
    before = layer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(("before", type(module), "engram_step" in kwargs)),
        with_kwargs=True,
    )
    after = layer.register_forward_hook(lambda module, args, out: seen.append(("after", out.shape)))
    report = fuse(model)
    assert report.num_fused == 4
    seen.clear()
    check = _probe_run(model)
    assert seen == [("before", FusedLayer, True), ("after", check.shape)]
    before.remove()
    after.remove()
    _probe_run(model)
    assert len(seen) == 2


def _probe_run(model):
    from server.engine.fuse.calls import record_calls

    return record_calls(model, model.model.layers)[2].hidden


def test_facts_that_a_model_reads_from_its_layers_stay():
    model = tiny_llama()
    for layer in model.model.layers:
        layer.attention_type = "full_attention"
    fuse(model)
    assert {layer.attention_type for layer in model.model.layers} == {"full_attention"}


def test_called_beside_its_engine_it_refuses():
    model = tiny_llama()
    fuse(model)
    with pytest.raises(UnsupportedModelError, match="layer 0: the attention was called without"):
        model(torch.tensor([[1, 2, 3]]))


def test_a_mask_is_refused():
    model = tiny_llama()
    fuse(model)
    cos = torch.ones(1, 2, 8)
    with pytest.raises(UnsupportedModelError, match="layer 3 passes 'attention_mask'"):
        model.model.layers[3](
            torch.zeros(1, 2, 32), position_embeddings=(cos, cos), engram_batch=object(),
            attention_mask=torch.zeros(1, 1, 2, 2), use_cache=False,
        )  # fmt: skip


def limits(max_model_len):
    return EngineLimits(max_model_len=max_model_len)


def test_a_served_model_is_remembered_and_its_length_still_checked():
    model = tiny_llama()
    served = make_served(model, limits(128), TORCH)
    assert served.fused.num_fused == 4
    assert make_served(model, limits(256), TORCH) == served
    with pytest.raises(ConfigError, match="max_model_len is 300; accepted: at most 256"):
        make_served(model, limits(300), TORCH)


@pytest.mark.skipif(
    not can_pack(nn.Linear(8, 8).bfloat16()), reason="no packed bfloat16 product on this processor"
)
def test_fused_weights_are_packed():
    model = tiny_llama().bfloat16()
    assert make_served(model, limits(128), TORCH).num_packed == 4 * 4 + 1
    layer = model.model.layers[0]
    for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
        assert type(linear) is PackedLinear
