"""Greedy tokens equal transformers' generate(): alone, in a crowd, in chunks, after preemption."""

import pytest
from engines import generate_alone, random_prompt, running
from models import NUM_IDS, random_model
from transformers import AutoConfig

BASE = {
    "vocab_size": NUM_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
MODELS = {
    "llama": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 6},
    "phi": {"partial_rotary_factor": 0.5},
    "gpt2": {},
    "gpt_neox": {"rotary_pct": 0.5},
    "olmo2": {},
    "gemma2": {  # with a cap so low that tokens depend on it
        "head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 0.5,
        "query_pre_attn_scalar": 4,
    },
    "gemma3_text": {
        "head_dim": 8, "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen3_moe": {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip
PROMPTS = [random_prompt(3 + 5 * index % 37, seed=index) for index in range(16)]


@pytest.fixture(scope="module", params=MODELS)
def config(request):
    return AutoConfig.for_model(request.param, **{**BASE, **MODELS[request.param]})


@pytest.fixture(scope="module")
def expected(config):
    model = random_model(config)
    model.set_attn_implementation("eager")  # the others leave out the soft cap
    return [generate_alone(model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_num_batched_tokens": 16},  # every prompt in chunks, mixed with decodes
        {"max_num_seqs": 5},  # queueing
    ],
    ids=["whole", "chunked", "queued"],
)
def test_sixteen_at_once(config, expected, limits):
    with running(random_model(config), **limits) as client:
        streams = [client.submit(prompt) for prompt in PROMPTS]
        assert [stream.wait().token_ids for stream in streams] == expected


def test_alone(config, expected):
    with running(random_model(config)) as client:
        for prompt, tokens in list(zip(PROMPTS, expected, strict=True))[:4]:
            assert client.generate(prompt).token_ids == tokens


def test_preempted(config, expected):
    model = random_model(config)
    per_token = 3 * 2 * 32 * 4  # layers, keys and values, at most hidden_size float32 numbers
    with running(model, kv_cache_bytes=per_token * 8 * 14) as client:
        streams = [client.submit(prompt) for prompt in PROMPTS]
        tokens = [stream.wait().token_ids for stream in streams]
    assert tokens == expected
