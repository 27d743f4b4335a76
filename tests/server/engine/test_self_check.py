"""Models that would be served silently wrong are refused, in one sentence: where and why."""

import pytest
import torch
from models import random_model, tiny_llama
from transformers import AttentionInterface, AutoConfig, T5Config, T5ForConditionalGeneration

from engram_core.errors import ConfigError, UnsupportedModelError
from server.engine import self_check
from server.engine.attention import NAME
from server.engine.kv_cache import LayerShape
from server.engine.self_check import check_model

BASE = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0,
}  # fmt: skip


def make(kind, **change):
    return random_model(AutoConfig.for_model(kind, **{**BASE, **change}))


def test_a_good_model_is_left_with_our_attention_and_its_shapes_are_known():
    model = tiny_llama()
    report = check_model(model, 128)
    assert report.shapes == (LayerShape(2, 8, 8),) * 4
    assert report.error < 1e-5
    assert model.config._attn_implementation == NAME
    assert check_model(model, 128) == report  # a second engine on the same model


def test_half_precision_is_judged_by_what_it_can():
    assert check_model(tiny_llama().bfloat16(), 128).error < 0.1


def test_keys_and_values_of_different_widths():
    model = make(
        "deepseek_v3", n_routed_experts=4, first_k_dense_replace=1, n_group=1, topk_group=1,
        num_experts_per_tok=2, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=12, num_key_value_heads=4, moe_intermediate_size=16,
    )  # fmt: skip
    assert check_model(model, 64).shapes == (LayerShape(4, 16, 12),) * 2


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("bloom", {}, "layer 0 does not call the attention it is told to"),
        ("mpt", {}, "layer 0 does not call the attention it is told to"),
        ("gpt_oss", {"head_dim": 8, "num_local_experts": 4}, "layer 0 needs attention sinks"),
        ("mamba", {}, "layer 0 is of type 'linear_attention'"),
        ("llama4_text", {"head_dim": 8}, "layer 0 is of type 'chunked_attention'"),
        ("stablelm", {}, "layer 0: the attention was called without its batch"),
        (
            "phi3",
            {
                "original_max_position_embeddings": 32,
                "rope_parameters": {
                    "rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0,
                    "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 32,
                },
            },
            r"rotary scaling \(longrope\) depends on the longest sequence of a batch beyond 32",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)  # fmt: skip
def test_refused(kind, change, words, caplog):
    with pytest.raises(UnsupportedModelError, match=words):
        check_model(make(kind, **change), 64)


def test_dynamic_rotary_is_served_up_to_its_original_length():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = make("llama", rope_parameters=rope)
    model.config.max_position_embeddings = 256
    model.config.rope_parameters["original_max_position_embeddings"] = 64
    assert check_model(model, 64).error < 1e-5
    with pytest.raises(UnsupportedModelError, match=r"beyond 64 tokens; max_model_len is 65"):
        check_model(model, 65)


def test_encoder_decoders_are_refused():
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4)
    with pytest.raises(UnsupportedModelError, match=r"T5.* is an encoder-decoder"):
        check_model(T5ForConditionalGeneration(config), 64)


def test_more_positions_than_the_model_has_are_refused():
    with pytest.raises(ConfigError, match="max_model_len is 300; accepted: at most 256"):
        check_model(tiny_llama(), 300)


def test_a_window_that_the_layer_does_not_ask_for_is_refused():
    model = make("llama")
    model.config.sliding_window = 5
    with pytest.raises(UnsupportedModelError, match="layer 0 declares a window of 5 tokens but"):
        check_model(model, 64)
    model.config.sliding_window = 64  # changes nothing within max_model_len
    check_model(model, 64)


def test_attention_that_we_would_not_reproduce_is_found_by_its_logits(monkeypatch):
    """Stands for any difference that no configuration shows."""
    true_attention = self_check.Runner.run

    def slightly_wrong(runner, batch, engram_step=None):
        output = true_attention(runner, batch)
        output.logits[-1] += torch.linspace(0, 0.05, output.logits.shape[1])
        return output

    monkeypatch.setattr(self_check.Runner, "run", slightly_wrong)
    model = tiny_llama()
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match="logits of lone sequences differ"):
        check_model(model, 64)
    assert model.config._attn_implementation == before


def test_a_keyword_that_nobody_knows_is_refused():
    from server.engine.attention import refuse_unknown

    refuse_unknown("Some", 3, {"use_cache": False, "never_heard_of": None})
    with pytest.raises(UnsupportedModelError, match="Some: layer 3 passes 'never_heard_of'"):
        refuse_unknown("Some", 3, {"never_heard_of": 1})


def test_registered_once():
    assert NAME in AttentionInterface().valid_keys()
