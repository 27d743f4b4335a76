"""Layers are known by what they are made of; everything else gets a reason, in one sentence."""

import pytest
import torch
from models import random_model, tiny_llama
from torch import nn
from transformers import AutoConfig

from engram_core.backbone import find_decoder_layers
from server.engine.attention import AttentionOptions
from server.engine.fuse.parts import LayerParts
from server.engine.fuse.recognise import recognise

BASE = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
OPTIONS = AttentionOptions(scaling=0.5, sliding_window=7)


def make_layer(kind, **change):
    model = random_model(AutoConfig.for_model(kind, **{**BASE, **change}))
    return find_decoder_layers(model)[1]


def test_the_parts_of_a_llama_layer():
    layer = make_layer("llama", rms_norm_eps=3e-6)
    parts = recognise(layer, 1, OPTIONS)
    assert isinstance(parts, LayerParts)
    assert parts.query is layer.self_attn.q_proj
    assert parts.down is layer.mlp.down_proj
    assert parts.input_norm.weight is layer.input_layernorm.weight
    assert parts.post_norm.eps == 3e-6
    assert (parts.query_norm, parts.key_norm) == (None, None)
    assert (parts.layer, parts.num_heads, parts.num_kv_heads, parts.head_dim) == (1, 4, 2, 8)
    assert (parts.activation, parts.options) == ("silu", OPTIONS)


def test_norms_of_heads_and_biases():
    parts = recognise(make_layer("qwen3", head_dim=16, attention_bias=True), 1, OPTIONS)
    assert parts.query_norm.weight.shape == parts.key_norm.weight.shape == (16,)
    assert parts.query.bias is not None
    assert parts.head_dim == 16


@pytest.mark.parametrize(
    ("name", "known"),
    [("silu", "silu"), ("swish", "silu"), ("gelu_pytorch_tanh", "gelu_tanh"),
     ("gelu_new", "gelu_tanh")],
)  # fmt: skip
def test_activations_are_known_by_their_values(name, known):
    assert recognise(make_layer("llama", hidden_act=name), 1, OPTIONS).activation == known


@pytest.mark.parametrize("name", ["gelu", "relu", "quick_gelu"])
def test_other_activations_are_refused(name):
    reason = recognise(make_layer("llama", hidden_act=name), 1, OPTIONS)
    assert reason.startswith("layer 1 has the activation ")
    assert reason.endswith("which is neither SiLU nor tanh-GELU")


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        (
            "gemma2",
            {"head_dim": 8, "hidden_activation": "gelu_pytorch_tanh"},
            "has pre_feedforward_layernorm.weight, which is no part of a layer of Llama's kind",
        ),
        ("olmo2", {}, "has no input_layernorm"),
        (
            "qwen3_moe",
            {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2},
            "has no part with gate_proj, up_proj, down_proj",
        ),
        ("gpt2", {}, "has no input_layernorm"),
        (
            "phi",
            {},
            "has no RMSNorm of one weight vector and an epsilon as input_layernorm",
        ),
        ("phi3", {}, "has no part with q_proj, k_proj, v_proj, o_proj"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_refused(kind, change, reason):
    assert recognise(make_layer(kind, **change), 1, OPTIONS) == f"layer 1 {reason}"


def _add_a_parameter(layer):
    layer.mlp.scale = nn.Parameter(torch.ones(1))


def _add_a_buffer(layer):
    layer.self_attn.register_buffer("sinks", torch.zeros(4))


def _subclass_a_projection(layer):
    layer.mlp.up_proj = nn.modules.linear.NonDynamicallyQuantizableLinear(32, 64)


def _hook_inside(layer):
    layer.self_attn.register_forward_hook(lambda *_: None)


def _norm_all_heads_at_once(layer):
    layer.self_attn.q_norm = nn.RMSNorm(32, eps=1e-6)
    layer.self_attn.k_norm = nn.RMSNorm(16, eps=1e-6)


def _double_the_query(layer):
    layer.self_attn.q_proj = nn.Linear(32, 64, bias=False)


def _forget_the_epsilon(layer):
    layer.input_layernorm = nn.RMSNorm(32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_add_a_parameter, "has mlp.scale, which is no part of a layer of Llama's kind"),
        (_add_a_buffer, "has self_attn.sinks, which is no part of a layer of Llama's kind"),
        (
            _subclass_a_projection,
            "has a up_proj of type NonDynamicallyQuantizableLinear instead of Linear",
        ),
        (_hook_inside, "has a hook on self_attn, which would be lost"),
        (_norm_all_heads_at_once, "has a q_norm over 32 values instead of one head's 8"),
        (_double_the_query, "has a projection output of size 32 instead of 64"),
        (
            _forget_the_epsilon,
            "has no RMSNorm of one weight vector and an epsilon as input_layernorm",
        ),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_changed_layer_is_refused(change, reason):
    layer = tiny_llama().model.layers[2]
    change(layer)
    assert recognise(layer, 2, OPTIONS) == f"layer 2 {reason}"


def test_a_layer_that_calls_itself_another_is_refused():
    assert recognise(make_layer("llama"), 0, OPTIONS) == "layer 0 calls itself layer 1"
