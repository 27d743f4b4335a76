"""Fused models give the tokens of transformers' generate(), greedily and in float32."""

import copy

import pytest
import torch
from engines import generate_alone, random_prompt, running
from models import NUM_IDS, random_memory, random_model, tiny_llama
from transformers import AutoConfig

from engram_core.prefetch import Prefetcher
from engram_core.simulated import SimulatedDevice
from engram_core.splice import attach
from server.engine.fuse.report import FuseReport

BASE = {
    "vocab_size": NUM_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 1,
    "tie_word_embeddings": True,
}  # fmt: skip
MODELS = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
}
PROMPTS = [random_prompt(3 + 7 * index % 37, seed=index) for index in range(8)]


def make(kind):
    model = random_model(AutoConfig.for_model(kind, **{**BASE, **MODELS[kind]}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # random models have zeros and ones there
            parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()))
    return model


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": 16}], ids=["whole", "chunked"])
def test_tokens_equal_generate(kind, limits):
    model = make(kind)
    expected = [generate_alone(model, prompt) for prompt in PROMPTS]
    with running(model, **limits) as client:
        assert client.engine.fused == FuseReport(3, 3, None)
        streams = [client.submit(prompt) for prompt in PROMPTS]
        assert [stream.wait().token_ids for stream in streams] == expected


def test_a_model_with_a_memory_on_a_device_with_graphs():
    settings = {"pad_token_id": 1, "eos_token_id": 0}
    plain = tiny_llama(**settings)
    with attach(plain, random_memory(plain)):
        expected = [generate_alone(plain, prompt) for prompt in PROMPTS]
    model = tiny_llama(**settings)
    version = random_memory(model)
    device = SimulatedDevice()
    prefetcher = Prefetcher(device)
    with (
        attach(model, version),
        running(model, version=version, prefetcher=prefetcher, device=device) as client,
    ):
        assert client.engine.fused.num_fused == 4
        streams = [client.submit(prompt) for prompt in PROMPTS]
        assert [stream.wait().token_ids for stream in streams] == expected
    prefetcher.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_stay_close_to_the_unfused_model(dtype):
    model = make("qwen3").to(dtype)
    logits = copy.deepcopy(model)(torch.tensor([PROMPTS[3]])).logits[0, -1].float()
    with running(model) as client:
        assert client.engine.fused.num_fused == 3
        first = client.generate(PROMPTS[3], 1).tokens[0].token
    assert first.logprob == pytest.approx(float(logits.log_softmax(-1)[first.id]), abs=0.1)


@pytest.mark.parametrize("copied", [False, True], ids=["the same", "a copy"])
def test_a_second_engine_on_the_same_model(copied):
    model = make("llama")
    expected = [generate_alone(model, prompt) for prompt in PROMPTS[:3]]
    with running(model) as first:
        report, fused = first.engine.report, first.engine.fused
    with running(copy.deepcopy(model) if copied else model) as client:
        assert (client.engine.report, client.engine.fused) == (report, fused)
        assert [client.generate(prompt).token_ids for prompt in PROMPTS[:3]] == expected
