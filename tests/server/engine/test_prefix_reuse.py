"""An answer is the same whether its prompt's prefix was computed before or not."""

import pytest
import torch
from engines import Recording, assert_baseline, generate_alone, random_prompt, running
from models import NUM_IDS, random_memory, random_model, tiny_llama
from transformers import AutoConfig

from engram_core.cpu_cores import CpuCores
from engram_core.device import make_device
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach
from server.engine.types import EngramParams

BASE = {
    "vocab_size": NUM_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
MODELS = {
    "llama": {},
    "mistral": {"head_dim": 8, "sliding_window": 6},  # in every layer
    "gpt2": {},  # learned positions, as many value heads as query heads
    "gemma2": {"head_dim": 8, "sliding_window": 6},  # in every other layer, with a soft cap
    "gemma3_text": {
        "head_dim": 8, "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen3_moe": {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
}  # fmt: skip
PREFIX = random_prompt(43)
PROMPTS = [PREFIX[:length] + random_prompt(tail) for length, tail in ((43, 1), (43, 9), (20, 30))]
OFF = EngramParams(enabled=False)


def outcome(stream):
    """What a client sees, to the last bit."""
    assert stream.failure is None
    return [(event.token.id, event.token.logprob, event.text_delta) for event in stream.tokens]


def generate(client, prompt, **rest):
    return client.generate(prompt, 12, ignore_eos=True, **rest)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("budget", [512, 16], ids=["whole", "chunked"])
def test_hit_equals_miss(kind, budget):
    model = random_model(AutoConfig.for_model(kind, **{**BASE, **MODELS[kind]}))
    with running(model, prefix_cache=False) as client:
        expected = [outcome(generate(client, prompt)) for prompt in PROMPTS]
    with running(model, max_num_batched_tokens=budget) as client:
        streams = [generate(client, prompt) for prompt in (*PROMPTS, *PROMPTS)]
    cached = [stream.end.cached_tokens for stream in streams]
    assert cached == [0, 40, 16, 40, 48, 48]
    for stream, wanted in zip(streams, [*expected, *expected], strict=True):
        assert_same(outcome(stream), wanted)


def assert_same(found, expected):
    """Equal tokens and texts; a product over fewer rows may round its last bit differently."""
    assert [(token, text) for token, _, text in found] == [(t, text) for t, _, text in expected]
    assert [logprob for _, logprob, _ in found] == pytest.approx(
        [logprob for _, logprob, _ in expected], abs=1e-5
    )


@pytest.mark.parametrize("kind", MODELS)
def test_hit_equals_miss_to_the_last_bit_where_the_pieces_are_the_same(kind):
    model = random_model(AutoConfig.for_model(kind, **{**BASE, **MODELS[kind]}))
    pieces = {"max_num_batched_tokens": 40}  # as far as the known prefix reaches, then the rest
    with running(model, prefix_cache=False, **pieces) as client:
        expected = outcome(generate(client, PROMPTS[1]))
    with running(model, **pieces) as client:
        generate(client, PROMPTS[0])
        stream = generate(client, PROMPTS[1])
    assert stream.end.cached_tokens == 40
    assert outcome(stream) == expected


def serving(form, **settings):
    model = tiny_llama(pad_token_id=1, eos_token_id=0)
    version = random_memory(model, form=form, orders=(2, 3, 4))
    attach(model, version)
    prefetcher = Prefetcher(make_device("cpu"), cores=CpuCores(2, "a test"))
    return running(model, version=version, prefetcher=prefetcher, **settings)


@pytest.mark.parametrize("form", ["v41", "demo"])
@pytest.mark.parametrize("budget", [512, 16], ids=["whole", "chunked"])
def test_hit_equals_miss_with_a_memory(form, budget):
    with serving(form, prefix_cache=False) as client:
        expected = [outcome(generate(client, prompt)) for prompt in PROMPTS]
    with serving(form, max_num_batched_tokens=budget) as client:
        streams = [generate(client, prompt) for prompt in (*PROMPTS, *PROMPTS)]
    assert [stream.end.cached_tokens for stream in streams] == [0, 40, 16, 40, 48, 48]
    for stream, wanted in zip(streams, [*expected, *expected], strict=True):
        assert_same(outcome(stream), wanted)


@pytest.mark.parametrize("form", ["v41", "demo"])
def test_hit_equals_miss_to_the_last_bit_with_a_memory(form):
    with serving(form, prefix_cache=False, max_num_batched_tokens=40) as client:
        expected = outcome(generate(client, PROMPTS[1]))
    with serving(form, max_num_batched_tokens=40) as client:
        generate(client, PROMPTS[0])
        stream = generate(client, PROMPTS[1])
    assert stream.end.cached_tokens == 40
    assert outcome(stream) == expected


@pytest.mark.parametrize("form", ["v41", "demo"])
def test_a_conversation_goes_on_behind_the_last_answer(form):
    with serving(form) as client:
        prompt = PROMPTS[0]
        for turn in range(3):
            stream = generate(client, prompt)
            known = 0 if turn == 0 else (len(prompt) - 5 - 1) // 8 * 8
            assert stream.end.cached_tokens == known
            prompt = [*prompt, *stream.token_ids, *random_prompt(5, seed=turn)]
        last = [event.token.id for event in stream.tokens]
    with serving(form, prefix_cache=False) as client:
        assert generate(client, prompt[: -12 - 5]).token_ids == last


@pytest.mark.parametrize("form", ["v41", "demo"])
def test_sharing_while_running_and_after_preemption(form):
    prompts = [PREFIX[:24] + random_prompt(1 + index, seed=index) for index in range(8)]
    with serving(form, prefix_cache=False) as client:
        expected = [generate(client, prompt).token_ids for prompt in prompts]
    recorder = Recording()
    tight = {"kv_cache_bytes": 16 * 8 * 4 * 2 * 64}
    with serving(form, recorder=recorder, **tight) as client:
        generate(client, prompts[0])
        streams = [client.submit(prompt, 12, ignore_eos=True) for prompt in prompts]
        assert [stream.wait().token_ids for stream in streams] == expected
    assert sum(step.preemptions for step in recorder.steps) > 0
    assert all(stream.end.cached_tokens == 24 for stream in streams)


def test_nothing_is_shared_across_memory_gates_and_keys():
    different = [
        {},
        {"engram": OFF},
        {"engram": EngramParams(gate_scale=0.5)},
        {"isolation": "a"},
        {"isolation": "b"},
        {"isolation": "b", "engram": OFF},
    ]
    with serving("v41") as client:
        first = [generate(client, PREFIX, **each) for each in different]
        again = [generate(client, PREFIX, **each) for each in different]
    assert [stream.end.cached_tokens for stream in first] == [0] * 6
    assert [stream.end.cached_tokens for stream in again] == [40] * 6
    for one, other in zip(first, again, strict=True):
        assert_same(outcome(one), outcome(other))


def test_only_rows_of_computed_tokens_are_asked_for():
    recorder = Recording()
    with serving("v41", recorder=recorder) as client:
        generate(client, PREFIX)
        stream = generate(client, PREFIX)
    lookups = [stats for step in recorder.steps for stats in step.lookups]
    computed, columns, layers = (43 + 11) + (43 - 40 + 11), 6, 2
    assert sum(stats.rows for stats in lookups) == computed * columns * layers
    assert {stats.outcome for stats in lookups} <= {"hidden", "partial", "late", "inline"}
    assert [usage.gate_count for usage in stream.end.engram] == [43 - 40 + 11] * 2


def test_every_position_of_a_judged_prompt_is_computed():
    with serving("demo") as client:
        generate(client, PREFIX)
        judged = client.generate(PREFIX, 1, prompt_logprobs=True)
        assert judged.end.cached_tokens == 0
        assert [token.id for token in judged.end.prefill] == PREFIX
        again = client.generate(PREFIX, 1, prompt_logprobs=True)
    assert [t.logprob for t in judged.end.prefill] == [t.logprob for t in again.end.prefill]


def test_what_the_memory_did_for_a_token_is_the_same_behind_a_known_prefix():
    wanted = EngramParams(per_token=True)
    with serving("demo") as client:
        first, second = (generate(client, PREFIX, engram=wanted) for _ in range(2))
    assert second.end.cached_tokens == 40
    for one, other in zip(first.tokens, second.tokens, strict=True):
        assert [(m.layer, m.ngram, m.row_ids) for m in one.memory] == [
            (m.layer, m.ngram, m.row_ids) for m in other.memory
        ]
        assert [m.gate for m in one.memory] == pytest.approx([m.gate for m in other.memory])


def test_counts_of_the_recorder_and_the_status():
    recorder = Recording()
    with serving("v41", recorder=recorder) as client:
        for _ in range(2):
            generate(client, PREFIX)
        status = client.engine.status()
    assert sum(step.prefix_queried_tokens for step in recorder.steps) == 86
    assert sum(step.prefix_hit_tokens for step in recorder.steps) == 40
    assert (status.kv_blocks_used, status.kv_blocks_kept) == (0, 6)  # 43 + 11 computed tokens


def test_switched_off_nothing_is_kept():
    recorder = Recording()
    with serving("demo", recorder=recorder, prefix_cache=False) as client:
        streams = [generate(client, PREFIX) for _ in range(2)]
        assert client.engine.status().kv_blocks_kept == 0
    assert [stream.end.cached_tokens for stream in streams] == [0, 0]
    assert sum(step.prefix_queried_tokens for step in recorder.steps) == 0


@pytest.mark.parametrize("place", [20, 42], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("budget", [512, 16], ids=["whole", "chunked"])
def test_blocks_of_a_failed_sequence_are_never_reused(place, budget):
    model = tiny_llama(pad_token_id=1, eos_token_id=0)
    broken = [*PREFIX[:place], 77, *PREFIX[place:]]
    with running(model) as client:
        expected = generate(client, PREFIX).token_ids
    with running(model, max_num_batched_tokens=budget) as client:
        with torch.no_grad():
            model.get_input_embeddings().weight[77] = float("nan")
        assert client.generate(broken, 4).failure == "generation"
        assert client.engine.status().kv_blocks_kept == 0
        stream = generate(client, PREFIX)
        assert (stream.token_ids, stream.end.cached_tokens) == (expected, 0)
        # its kept blocks are shared with one that fails; the others go on untouched
        mates = [client.submit(PREFIX, 40, ignore_eos=True) for _ in range(3)]
        mates[0].next()
        failing = client.submit([*PREFIX, 77], 4)
        assert failing.wait().failure == "generation"
        for mate in mates:
            assert mate.wait().token_ids[:12] == expected
    assert_baseline(client.engine)


def test_a_cache_full_of_prefixes_still_takes_everything():
    model = tiny_llama(pad_token_id=1, eos_token_id=0)
    prompts = [random_prompt(30 + index, seed=index) for index in range(20)]
    with running(model, kv_cache_bytes=14 * 8 * 4 * 2 * 64) as client:
        for prompt in prompts:
            generate(client, prompt)
        status = client.engine.status()
        assert status.kv_blocks_used == 0
        assert 0 < status.kv_blocks_kept <= status.kv_blocks_total
        streams = [client.submit(prompt) for prompt in prompts]
        expected = [generate_alone(model_copy(), prompt) for prompt in prompts]
        assert [stream.wait().token_ids for stream in streams] == expected


def model_copy():
    return tiny_llama(pad_token_id=1, eos_token_id=0)
