"""The engine with a memory: equal to a plain generate() that looks its rows up in the layer."""

import copy

import pytest
import torch
from engines import Recording, assert_baseline, generate_alone, random_prompt, running
from fakes.tiers import DelayedTier, FaultyTier, WrappedTier
from models import NUM_IDS, random_memory, tiny_llama

from engram_core.conv_state import ConvState
from engram_core.cpu_cores import CpuCores
from engram_core.device import make_device
from engram_core.errors import TierError
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach
from server.engine.types import EngramParams

PROMPTS = [random_prompt(3 + 5 * index % 29, seed=index, num_ids=NUM_IDS) for index in range(16)]
OFF = EngramParams(enabled=False)


def make_model():
    return tiny_llama(pad_token_id=1, eos_token_id=0)


def make_prefetcher(**settings):
    return Prefetcher(make_device("cpu"), cores=CpuCores(2, "a test"), **settings)


def serving(form="v41", *, prefetch=True, wrap=lambda tier: tier, inline_max_rows=4096, **settings):
    """An engine over a model with a memory, as a context that yields its client."""
    model = make_model()
    version = random_memory(model, form=form, orders=(2, 3, 4), wrap=wrap)
    attach(model, version)
    prefetcher = make_prefetcher(enabled=prefetch, inline_max_rows=inline_max_rows)
    return running(model, version=version, prefetcher=prefetcher, **settings), version


@pytest.fixture(scope="module", params=["v41", "demo", "peft"])
def form(request):
    return request.param


@pytest.fixture(scope="module")
def expected(form):
    model = make_model()
    with attach(model, random_memory(model, form=form, orders=(2, 3, 4))):
        return [generate_alone(model, prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected_plain():
    return [generate_alone(make_model(), prompt) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefetch": False},
        {"inline_max_rows": 0},  # decode steps go to the worker too
        {"max_num_batched_tokens": 16},
        {"kv_cache_bytes": 30 * 8 * 4 * 2 * 64},  # preemption
    ],
    ids=["async", "off", "worker", "chunked", "preempted"],
)
def test_sixteen_at_once_equal_plain_generate(form, expected, settings):
    context, version = serving(form, **settings)
    with context as client:
        streams = [client.submit(prompt) for prompt in PROMPTS]
        assert [stream.wait().token_ids for stream in streams] == expected
    assert version.references == 1


def test_memory_off_is_the_plain_backbone_and_can_share_a_batch(form, expected, expected_plain):
    assert expected != expected_plain
    with serving(form)[0] as client:
        streams = [
            client.submit(prompt, engram=OFF if index % 2 else None)
            for index, prompt in enumerate(PROMPTS)
        ]
        tokens = [stream.wait().token_ids for stream in streams]
    assert tokens[1::2] == expected_plain[1::2]
    assert tokens[::2] == expected[::2]
    assert streams[1].end.engram == ()


def test_gate_scale_zero_takes_the_memory_away(expected_plain):
    with serving()[0] as client:
        silent = EngramParams(gate_scale=0.0)
        streams = [client.submit(prompt, engram=silent) for prompt in PROMPTS]
        assert [stream.wait().token_ids for stream in streams] == expected_plain


def test_usage_of_a_request(form):
    recorder = Recording()
    with serving(form, recorder=recorder)[0] as client:
        stream = client.generate(PROMPTS[3], 5, ignore_eos=True)
    tokens = len(PROMPTS[3]) + 4
    assert [usage.layer for usage in stream.end.engram] == [1, 2]
    for usage in stream.end.engram:
        assert usage.rows == tokens * 6  # three orders, two heads
        assert 0 < usage.unique_rows <= usage.rows
        assert sum(usage.rows_by_tier.values()) == usage.rows
        assert usage.gate_count == tokens
        assert 0 < usage.gate_sum < usage.gate_count
        assert usage.wait_s >= 0
        assert usage.lookup_s > 0
    lookups = [stats for step in recorder.steps for stats in step.lookups]
    waits = [stats for step in recorder.steps for stats in step.waits]
    assert len(lookups) == len(waits) == 2 * 5  # one prompt and four decode steps
    assert {stats.phase for stats in lookups} == {"prefill", "decode"}


def test_memory_of_each_token():
    with serving()[0] as client:
        wanted = EngramParams(per_token=True)
        stream = client.generate(PROMPTS[2], 4, engram=wanted, ignore_eos=True)
        plain = client.generate(PROMPTS[2], 4, ignore_eos=True)
    version = random_memory(make_model(), orders=(2, 3, 4))
    ids = PROMPTS[2] + stream.token_ids
    for event in stream.tokens:
        position = len(PROMPTS[2]) + event.index - 2  # the one that chose this token
        assert [entry.layer for entry in event.memory] == [1, 2]
        for entry in event.memory:
            rows = version.hasher.row_ids(ids[: position + 1], entry.layer)[-1]
            assert entry.row_ids == tuple(rows.tolist())
            assert 0 < entry.gate < 1
            assert entry.tiers
    assert stream.token_ids == plain.token_ids
    assert all(event.memory == () for event in plain.tokens)


@pytest.mark.parametrize("started", [False, True])
def test_cancelling_gives_tickets_and_version_back(started):
    context, version = serving(wrap=lambda tier: DelayedTier(tier, 0.01), max_num_seqs=2)
    with context as client:
        streams = [client.submit(prompt, 60, ignore_eos=True) for prompt in PROMPTS]
        if started:
            streams[0].next()
        for stream in streams:
            client.engine.abort(stream.id)
        for stream in streams:
            stream.wait()
        assert client.engine._inbox.wait_until_empty(10)
        assert_baseline(client.engine)
        assert version.references <= 3  # a running lookup may hold it a little longer
        client.generate(PROMPTS[0], 2)


def test_a_tier_that_fails_ends_what_needs_it_and_never_the_engine(caplog, expected_plain):
    faulty = []

    def wrap(tier):
        faulty.append(FaultyTier(tier))
        faulty[-1].broken = False
        return faulty[-1]

    with serving(wrap=wrap)[0] as client:
        good = client.generate(PROMPTS[0]).token_ids
        for _ in range(3):
            faulty[0].broken = True
            bad = [client.submit(prompt) for prompt in PROMPTS[:3]]
            plain = client.submit(PROMPTS[4], engram=OFF)
            assert {stream.wait().failure for stream in bad} == {"generation"}
            assert plain.wait().token_ids == expected_plain[4]
            faulty[0].broken = False
            assert client.generate(PROMPTS[0]).token_ids == good


class PoisonedTier(WrappedTier):
    """Fails whenever one row is among those asked for."""

    poison = -1

    def gather(self, row_ids, out):
        if (row_ids == self.poison).any():
            raise TierError("the rows are out of reach")
        return super().gather(row_ids, out)


def test_rows_that_fail_on_a_shared_ticket_end_their_own_request(caplog, form, expected):
    tiers = []

    def wrap(tier):
        tiers.append(PoisonedTier(tier))
        return tiers[-1]

    victim, others = 3, (0, 1, 2, 4, 5)
    context, version = serving(form, wrap=wrap)
    layer = version.layer_ids[1]
    with context as client:
        ids = [PROMPTS[index] + expected[index] for index in range(6)]
        rows = [set(version.hasher.row_ids(each[:-1], layer).flatten().tolist()) for each in ids]
        at = len(PROMPTS[victim]) + 3
        own = version.hasher.row_ids(ids[victim], layer)[at].tolist()
        mates = set().union(*(rows[index] for index in others))
        tiers[1].poison = next(row for row in own if row not in mates)
        streams = [client.submit(PROMPTS[index]) for index in range(6)]
        for stream in streams:
            stream.wait()
    assert streams[victim].failure == "generation"
    assert [streams[index].token_ids for index in others] == [expected[index] for index in others]


def test_a_hasher_that_fails_ends_its_requests_and_never_the_engine(caplog, expected_plain):
    context, version = serving()
    with context as client:
        version.hasher.class_ids = version.hasher.class_ids[:2]  # no token has a class any more
        bad = client.submit(PROMPTS[0])
        assert bad.wait().failure == "generation"
        assert client.generate(PROMPTS[4], engram=OFF).token_ids == expected_plain[4]


def test_a_failed_forward_leaves_convolution_states_alone(caplog):
    model = make_model()
    version = random_memory(model, form="demo", orders=(2, 3))
    attach(model, version)
    with running(model, version=version, prefetcher=make_prefetcher()) as client:
        whole = client.generate(PROMPTS[5], 10, ignore_eos=True)
        calls = []

        def raise_sometimes(module, args, output):
            calls.append(1)
            if len(calls) in (3, 7):  # after the Engram layers have run
                raise RuntimeError("a hiccup")

        model.lm_head.register_forward_hook(raise_sometimes)
        again = client.generate(PROMPTS[5], 10, ignore_eos=True)
        assert again.token_ids == whole.token_ids
        found, expected = ([e.token.logprob for e in s.tokens] for s in (again, whole))
        assert found == pytest.approx(expected, abs=1e-6)


def test_a_copied_convolution_state_is_a_snapshot():
    state = ConvState(3, 2)
    state.append(torch.ones(2, 2))
    snapshot = copy.copy(state)
    kept = snapshot.history.clone()
    state.append(torch.full((4, 2), 5.0))
    assert torch.equal(snapshot.history, kept)
    assert (snapshot.length, state.length) == (2, 6)
