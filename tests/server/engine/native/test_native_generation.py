"""Engines on compiled kernels: close to torch's, and the same whatever runs beside a request."""

import copy

import pytest
import torch
from engines import random_prompt, running
from models import NUM_IDS, random_memory, random_model
from transformers import AutoConfig

from engram_core.cpu_device import CpuDevice
from engram_core.errors import ConfigError
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach
from server.engine.tuning import Tuning

BASE = {
    "vocab_size": NUM_IDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "head_dim": 16, "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 0,
    "pad_token_id": 1, "tie_word_embeddings": True,
}  # fmt: skip
MODELS = {
    "llama": {},
    "mistral": {"sliding_window": 20},  # several tiles of keys, and a border within one
    "qwen2": {"num_key_value_heads": 4},  # biases
    "qwen3": {"head_dim": 32, "num_key_value_heads": 1},  # norms of queries and keys
}
LIMITS = {"block_size": 16, "max_model_len": 256}
PROMPTS = [random_prompt(length, seed=length) for length in (3, 17, 40, 64, 65, 130, 8, 90)]
NATIVE = Tuning(kernels="native")


def make(kind="llama", **change):
    model = random_model(AutoConfig.for_model(kind, **{**BASE, **MODELS[kind], **change}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # random models have zeros and ones there
            parameter.add_(torch.linspace(-0.3, 0.3, parameter.numel()))
    return model.bfloat16()


def prompt_logprobs(client, prompt):
    return [
        token.logprob for token in client.generate(prompt, 1, prompt_logprobs=True).end.prefill[1:]
    ]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": 16}], ids=["whole", "chunked"])
def test_every_position_is_judged_as_by_torch(kind, limits):
    exact = copy.deepcopy(make(kind)).float()
    with running(make(kind), tuning=NATIVE, **LIMITS, **limits) as client:
        assert client.engine.native.num_layers == 4
        for prompt in PROMPTS:
            ids = torch.tensor([prompt])
            expected = exact(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            found = torch.tensor(prompt_logprobs(client, prompt))
            assert (found - expected).abs().max() < 0.15
            assert (found - expected).abs().mean() < 0.03


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_an_answers_bits_do_not_depend_on_its_mates(kind, quantize):
    tuning = Tuning(deterministic=True, quantize=quantize)
    with running(make(kind), tuning=tuning, **LIMITS, prefix_cache=False) as client:
        alone = [told(client.generate(prompt, 24)) for prompt in PROMPTS]
        for seed in range(3):  # company that is drawn anew
            order = torch.randperm(8, generator=torch.Generator().manual_seed(seed)).tolist()
            streams = {index: client.submit(PROMPTS[index], 24) for index in order[: 4 + seed * 2]}
            assert {i: told(s.wait()) for i, s in streams.items()} == {i: alone[i] for i in streams}


@pytest.mark.parametrize("chunk", [16, 24, 61])
def test_an_answers_bits_do_not_depend_on_how_its_prompt_was_cut(chunk):
    with running(make(), tuning=NATIVE, **LIMITS, prefix_cache=False) as client:
        whole = [told(client.generate(prompt, 12)) for prompt in PROMPTS]
    limits = {**LIMITS, "max_num_batched_tokens": chunk, "max_num_seqs": 4}
    with running(make(), tuning=NATIVE, **limits, prefix_cache=True) as client:
        assert [told(client.generate(prompt, 12)) for prompt in PROMPTS] == whole
        assert [told(client.generate(prompt, 12)) for prompt in PROMPTS] == whole  # known prefixes


def test_an_answers_bits_do_not_depend_on_its_mates_with_a_memory():
    model = make()
    version = random_memory(model, layer_ids=(1, 3))
    for module in version.modules.values():
        module.to(dtype=torch.bfloat16)
    prefetcher = Prefetcher(CpuDevice(), dtype=torch.bfloat16)
    settings = {"version": version, "prefetcher": prefetcher, "prefix_cache": False, **LIMITS}
    with (
        attach(model, version),
        running(model, tuning=Tuning(deterministic=True), **settings) as client,
    ):
        alone = [told(client.generate(prompt, 16)) for prompt in PROMPTS]
        streams = [client.submit(prompt, 16) for prompt in PROMPTS]
        assert [told(stream.wait()) for stream in streams] == alone
    prefetcher.close()


def told(stream):
    """An answer's tokens with the exact log-probabilities."""
    return [(event.token.id, event.token.logprob) for event in stream.tokens]


def test_a_memory_is_read_before_its_layers():
    prompt = PROMPTS[4]
    plain, model = make(), make()
    memories = [random_memory(each, layer_ids=(1, 3)) for each in (plain, model)]
    answers = []
    for each, version, kernels in zip((plain, model), memories, ("torch", "native"), strict=True):
        for module in version.modules.values():
            module.to(dtype=torch.bfloat16)
        prefetcher = Prefetcher(CpuDevice(), dtype=torch.bfloat16)
        settings = {"version": version, "prefetcher": prefetcher, **LIMITS}
        with (
            attach(each, version),
            running(each, tuning=Tuning(kernels=kernels), **settings) as client,
        ):
            answers.append(torch.tensor(prompt_logprobs(client, prompt)))
        prefetcher.close()
    with running(make(), tuning=NATIVE, **LIMITS) as client:
        silent = torch.tensor(prompt_logprobs(client, prompt))
    assert (answers[0] - answers[1]).abs().mean() < 0.05
    assert (silent - answers[1]).abs().mean() > 0.3  # the memory really speaks


def test_a_second_engine_has_a_cache_of_its_own():
    model = make()
    with running(model, tuning=NATIVE, **LIMITS) as client:
        expected = [told(client.generate(prompt)) for prompt in PROMPTS[:3]]
    with running(model, tuning=NATIVE, **LIMITS) as client:
        assert [told(client.generate(prompt)) for prompt in PROMPTS[:3]] == expected
    with pytest.raises(ConfigError, match="was prepared for"), running(model, **LIMITS):
        pass


def test_weights_are_held_once():
    model = make(tie_word_embeddings=False)
    with running(model, tuning=NATIVE, **LIMITS):
        left = sum(parameter.nbytes for parameter in model.parameters())
    kept = model.get_input_embeddings().weight.nbytes
    assert left <= kept + 2 * model.config.hidden_size  # and the last norm


def test_kernels_that_do_not_fit_are_refused_with_the_reason():
    for change, reason in (
        ({"head_dim": 8}, "the size of its heads is no multiple of 16"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "its activation is not SiLU"),
    ):
        with running(make(**change), **LIMITS) as client:
            assert reason in client.engine.native.reason
            assert client.engine.num_packed > 0
        with (
            pytest.raises(ConfigError, match=rf'kernels is "native".*{reason}'),
            running(make(**change), tuning=NATIVE, **LIMITS),
        ):
            pass
    with (
        pytest.raises(ConfigError, match=r"deterministic is on.*float32"),
        running(make().float(), tuning=Tuning(deterministic=True), **LIMITS),
    ):
        pass


@pytest.mark.parametrize("quantize", ["int8", "int4", "auto"])
def test_other_models_are_quantized_linear_by_linear(quantize):
    config = AutoConfig.for_model(
        "gpt_neox", vocab_size=NUM_IDS, hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=256,
        bos_token_id=1, eos_token_id=0, initializer_range=0.05,
    )  # fmt: skip
    model = random_model(config).bfloat16()
    exact = copy.deepcopy(model).float()
    with running(model, tuning=Tuning(quantize=quantize), **LIMITS) as client:
        report = client.engine.native
        assert (report.num_layers, report.num_linears) == (0, 9)
        ids = torch.tensor([PROMPTS[2]])
        expected = exact(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        found = torch.tensor(prompt_logprobs(client, PROMPTS[2]))
        assert (found - expected).abs().mean() < 0.1
