"""Every row that compute takes is the committed tokens' own, on every path through the engine."""

import logging
import threading
from collections import Counter

import numpy as np
import pytest
from engines import Client, Recording, generate_alone, make_engine, random_prompt, running
from fakes.http import wait_until
from fakes.tiers import DelayedTier, HeldTier
from models import NUM_IDS, random_memory, tiny_llama

from engram_core.cpu_cores import CpuCores
from engram_core.device import make_device
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach
from engram_core.stats import AuditStats
from server.engine.memory_rows import MemoryRows
from server.engine.types import EngramParams

COLUMNS, LAYERS = 6, 2  # three orders with two heads; layers 1 and 2
PREFIX = random_prompt(43, num_ids=NUM_IDS)
PROMPTS = [PREFIX[: 8 * (index % 6)] + random_prompt(3 + index, seed=index) for index in range(12)]
TIGHT = 24 * 8 * 4 * 2 * 64  # bytes of a KV cache that has no room for all of them
OFF = EngramParams(enabled=False)
PATHS = {
    "async": {},
    "off": {"prefetch": False},
    "worker": {"inline_max_rows": 0},
    "slow": {"wrap": lambda tier: DelayedTier(tier, 0.002)},
    "chunked": {"max_num_batched_tokens": 16},
    "preempted": {"kv_cache_bytes": TIGHT},
    "chunked and preempted": {"max_num_batched_tokens": 16, "kv_cache_bytes": TIGHT},
    "no prefix cache": {"prefix_cache": False},
    "graphs": {"device": "simulated"},
}


class Counting(Prefetcher):
    """Counts the tickets that it opened."""

    num_opened = 0

    def _open_ticket(self, ticket):
        self.num_opened += 1
        return super()._open_ticket(ticket)


def make_prefetcher(*, prefetch=True, inline_max_rows=4096, device="cpu", audit_share=1.0):
    return Counting(
        make_device(device), enabled=prefetch, inline_max_rows=inline_max_rows,
        audit_share=audit_share, cores=CpuCores(2, "a test"),
    )  # fmt: skip


def serving(form="v41", *, prefetcher=None, wrap=lambda tier: tier, device=None, **settings):
    model = tiny_llama(pad_token_id=1, eos_token_id=0)
    version = random_memory(model, form=form, orders=(2, 3, 4), wrap=wrap)
    attach(model, version)
    device = None if device is None else make_device(device)
    return running(model, version=version, prefetcher=prefetcher, device=device, **settings)


def sums(recorder):
    """Rows audited, lookups by outcome and computed tokens of all steps."""
    audited, outcomes, tokens = AuditStats(), Counter(), 0
    for step in recorder.steps:
        audited += step.audited or AuditStats()
        outcomes.update(lookup.outcome for lookup in step.lookups)
        tokens += step.prefill_tokens + step.decode_tokens
    outcomes.update(lookup.outcome for lookup in recorder.unused)
    return audited, outcomes, tokens


@pytest.fixture(scope="module", params=["v41", "demo"])
def form(request):
    return request.param


@pytest.fixture(scope="module")
def expected(form):
    model = tiny_llama(pad_token_id=1, eos_token_id=0)
    with attach(model, random_memory(model, form=form, orders=(2, 3, 4))):
        return [generate_alone(model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("path", PATHS)
def test_every_row_is_audited_and_right(form, expected, path):
    settings, recorder = dict(PATHS[path]), Recording()
    told = {key: settings.pop(key) for key in ("prefetch", "inline_max_rows") if key in settings}
    prefetcher = make_prefetcher(device=settings.get("device", "cpu"), **told)
    with serving(form, prefetcher=prefetcher, recorder=recorder, **settings) as client:
        first = client.submit(PROMPTS[5]).wait()  # for the prefix cache
        streams = [client.submit(prompt) for prompt in PROMPTS]
        assert [stream.wait().token_ids for stream in streams] == expected
    prefetcher.close()
    audited, outcomes, tokens = sums(recorder)
    assert (audited.mismatch, audited.unread) == (0, 0)
    assert audited.match == tokens * COLUMNS * LAYERS > 0
    # every lookup of every ticket met compute once, or was given up
    assert outcomes.total() == prefetcher.num_opened * LAYERS
    assert first.token_ids == expected[5]
    _assert_outcomes(path, outcomes)
    hits = sum(step.prefix_hit_tokens for step in recorder.steps)
    assert (hits > 0) == (path != "no prefix cache")
    assert (sum(step.preemptions for step in recorder.steps) > 0) == ("preempted" in path)


def _assert_outcomes(path, outcomes):
    if path == "off":
        assert set(outcomes) <= {"inline", "cancelled"}
    if path in ("worker", "slow"):
        assert outcomes["inline"] == 0
        assert outcomes["hidden"] + outcomes["partial"] + outcomes["late"] > 0
    if path == "async":
        assert outcomes["inline"] > 0  # small decode steps
        assert outcomes["hidden"] + outcomes["partial"] + outcomes["late"] > 0


def test_requests_without_memory_are_no_part_of_it():
    recorder, prefetcher = Recording(), make_prefetcher()
    with serving(prefetcher=prefetcher, recorder=recorder) as client:
        streams = [
            client.submit(prompt, 6, ignore_eos=True, engram=OFF if index % 2 else None)
            for index, prompt in enumerate(PROMPTS[6:])
        ]
        for stream in streams:
            stream.wait()
    prefetcher.close()
    audited, outcomes, tokens = sums(recorder)
    assert audited.mismatch == audited.unread == 0
    assert 0 < audited.match < tokens * COLUMNS * LAYERS
    assert outcomes.total() == prefetcher.num_opened * LAYERS


def test_a_cancelled_prompt_counts_its_lookups_as_cancelled():
    """One request holds the only place; those behind it are given up before they compute."""
    model = tiny_llama(pad_token_id=1, eos_token_id=0)
    attach(model, random_memory(model, orders=(2, 3, 4)))
    version = random_memory(model, orders=(2, 3, 4))
    recorder, prefetcher = Recording(), make_prefetcher()
    entered, let_go = threading.Event(), threading.Event()

    def block(module, args):
        entered.set()
        assert let_go.wait(60)

    engine = make_engine(
        model, version=version, prefetcher=prefetcher, recorder=recorder, max_num_seqs=1
    )
    handle = model.model.layers[0].register_forward_pre_hook(block)
    engine.start()
    client = Client(engine)
    first = client.submit(PROMPTS[0], 4, ignore_eos=True)
    assert entered.wait(60)
    others = [client.submit(prompt, 4) for prompt in PROMPTS[1:5]]
    for stream in others:
        engine.abort(stream.id)
    handle.remove()
    let_go.set()
    assert {stream.wait().failure for stream in others} == {"cancelled"}
    assert first.wait().failure is None
    engine.stop(5)
    prefetcher.close()
    audited, outcomes, tokens = sums(recorder)
    assert outcomes["cancelled"] == len(others) * LAYERS
    assert audited == AuditStats(match=tokens * COLUMNS * LAYERS)


def test_lookups_of_the_last_request_are_counted_without_another_step():
    recorder, prefetcher = Recording(), make_prefetcher()
    with serving(prefetcher=prefetcher, recorder=recorder) as client:
        stream = client.submit(PROMPTS[5], 60, ignore_eos=True)
        for _ in range(3):
            stream.next()
        client.engine.abort(stream.id)
        stream.wait()
        wait_until(
            lambda: sums(recorder)[1].total() == prefetcher.num_opened * LAYERS,
            what="every lookup counted",
        )
    prefetcher.close()


def test_cancelling_in_the_middle_leaves_no_wrong_row():
    recorder, prefetcher = Recording(), make_prefetcher(inline_max_rows=0)
    slow = {"wrap": lambda tier: DelayedTier(tier, 0.002), "max_num_batched_tokens": 16}
    with serving(prefetcher=prefetcher, recorder=recorder, **slow) as client:
        streams = [client.submit(prompt, 40, ignore_eos=True) for prompt in PROMPTS]
        for stream in streams[::2]:
            stream.next()
            client.engine.abort(stream.id)
        for stream in streams:
            stream.wait()
    prefetcher.close()
    audited, outcomes, tokens = sums(recorder)
    assert audited == AuditStats(match=tokens * COLUMNS * LAYERS)
    assert outcomes.total() == prefetcher.num_opened * LAYERS


def other(token_ids):
    return [2 + (token_id + 1) % (NUM_IDS - 2) for token_id in token_ids]


class StalePrompts(Counting):
    """Looks a prompt up as if other tokens stood there."""

    def submit_prompt(self, version, token_ids, history=()):
        return super().submit_prompt(version, other(token_ids), history)


class StaleHistory(Counting):
    """Forgets what came before a stretch."""

    def submit_prompt(self, version, token_ids, history=()):
        return super().submit_prompt(version, token_ids, ())


class StaleSteps(Counting):
    """Looks the token before the newest one up."""

    def submit_step(self, version, windows):
        return super().submit_step(version, np.roll(windows, -1, axis=1))


STALE = {StalePrompts: "prefill", StaleSteps: "decode"}


@pytest.mark.parametrize("kind", STALE)
@pytest.mark.parametrize("device", [None, "simulated"])
def test_a_ticket_of_other_tokens_is_reported(kind, device, caplog):
    recorder = Recording()
    prefetcher = kind(make_device(device or "cpu"), cores=CpuCores(2, "a test"), audit_share=1.0)
    with (
        caplog.at_level(logging.ERROR, logger="engram_core"),
        serving(prefetcher=prefetcher, recorder=recorder, device=device) as client,
    ):
        stream = client.generate(PROMPTS[6], 4, ignore_eos=True, request_id="mine")
    prefetcher.close()
    assert len(stream.token_ids) == 4  # it reports, and fails nobody
    prompt, decode = sums_by_phase(recorder)
    wrong, right = (prompt, decode) if STALE[kind] == "prefill" else (decode, prompt)
    assert wrong.mismatch > 0
    assert right.mismatch == 0
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == LAYERS
    position = 0 if STALE[kind] == "prefill" else len(PROMPTS[6])
    for layer, text in zip((1, 2), sorted(told), strict=True):
        assert f"request mine, position {position}, layer {layer}" in text


def sums_by_phase(recorder):
    prompt, decode = AuditStats(), AuditStats()
    for step in recorder.steps:
        if step.prefill_tokens:
            prompt += step.audited
        else:
            decode += step.audited
    return prompt, decode


def test_a_prefix_that_was_forgotten_is_reported(caplog):
    recorder = Recording()
    prefetcher = StaleHistory(make_device("cpu"), cores=CpuCores(2, "a test"), audit_share=1.0)
    with serving(prefetcher=prefetcher, recorder=recorder) as client:
        client.generate(PREFIX, 2)
        assert sums(recorder)[0].mismatch == 0
        stream = client.generate([*PREFIX, 5, 6, 7], 2)
    prefetcher.close()
    assert stream.end.cached_tokens == 40
    assert sums(recorder)[0].mismatch > 0


def test_rows_taken_one_place_too_far_are_reported(caplog, monkeypatch):
    """The ticket is right, the claim on it is not."""
    row_of = MemoryRows.row_of
    monkeypatch.setattr(MemoryRows, "row_of", lambda self, at: max(0, row_of(self, at) - 1))
    recorder, prefetcher = Recording(), make_prefetcher()
    with serving(prefetcher=prefetcher, recorder=recorder, max_num_batched_tokens=16) as client:
        client.generate(PROMPTS[5], 2)
    prefetcher.close()
    assert sums(recorder)[0].mismatch > 0


def test_a_sampled_share_is_a_share():
    counts = []
    for _ in range(2):
        recorder, prefetcher = Recording(), make_prefetcher(audit_share=0.25, prefetch=False)
        with serving(prefetcher=prefetcher, recorder=recorder) as client:
            for prompt in PROMPTS[:4]:
                client.generate(prompt, 12, ignore_eos=True)
        prefetcher.close()
        audited, _, tokens = sums(recorder)
        assert 0 < audited.match < tokens * COLUMNS * LAYERS
        counts.append(audited)
    assert counts[0] == counts[1]


def test_no_share_looks_nothing_up_again():
    recorder, tiers = Recording(), []

    def held(tier):
        tiers.append(HeldTier(tier))
        tiers[-1].let_go.set()
        return tiers[-1]

    prefetcher = make_prefetcher(audit_share=0.0)
    with serving(prefetcher=prefetcher, recorder=recorder, wrap=held) as client:
        client.generate(PROMPTS[3], 5, ignore_eos=True)
    prefetcher.close()
    assert all(step.audited is None for step in recorder.steps)
    assert [tier.gathers for tier in tiers] == [prefetcher.num_opened] * LAYERS
