"""What /metrics says about the prefetch is what really happened, over real HTTP."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
from fakes.http import metric_value, serve, wait_until
from fakes.tiers import DelayedTier
from prometheus_client.parser import text_string_to_metric_families
from real_backend import TinyLoader

from engram_core.prefetch import Prefetcher

DELAY_S = 0.005
PROMPT = "The rows of a prompt are on their way before its first layer runs. " * 4
REQUESTS = 12


def delayed(tier):
    return DelayedTier(tier, DELAY_S)


def total(text, name, **labels):
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def prefill(served, count=REQUESTS):
    """Prompts one after another, one token each; returns the wall-clock seconds."""
    started_s = time.perf_counter()
    for index in range(count):
        answer = served.generate(f"{index} {PROMPT}", max_new_tokens=1)
        assert answer.status_code == 200, answer.text
    return time.perf_counter() - started_s


def metrics(served):
    """/metrics with all prompts in it: a step is recorded just after its tokens were sent."""
    deadline_s = time.monotonic() + 10
    while True:
        text = served.client.get("/metrics").text
        recorded = total(text, "engram_lookup_duration_seconds_count", phase="prefill")
        if recorded >= 2 * REQUESTS or time.monotonic() > deadline_s:
            return text
        time.sleep(0.01)


def hidden_fraction(text, phase="prefill"):
    """README's expression, restricted to one phase."""
    wait_s = total(text, "engram_prefetch_wait_seconds_sum", phase=phase)
    return 1 - wait_s / total(text, "engram_lookup_duration_seconds_sum", phase=phase)


def test_prefetch_hides_the_lookups_of_a_prompt():
    with serve(TinyLoader(delayed), prefetch="on") as served:
        prefill(served)
        text = metrics(served)
    assert hidden_fraction(text) >= 0.5
    assert total(text, "engram_lookup_duration_seconds_count", phase="prefill") == 2 * REQUESTS
    for layer in ("8", "10"):
        waits = metric_value(
            text, "engram_prefetch_wait_seconds_count", layer=layer, phase="prefill"
        )
        assert waits == REQUESTS


def test_without_prefetch_nothing_is_hidden():
    with serve(TinyLoader(delayed), prefetch="off") as served:
        prefill(served)
        text = metrics(served)
    assert hidden_fraction(text) == pytest.approx(0, abs=0.02)
    assert total(text, "engram_prefetch_outcomes_total", outcome="inline") == 2 * REQUESTS


def test_the_exposed_wait_is_the_wall_clock_difference():
    """A slow tier against a fast one, in alternating pairs: the extra time is the extra wait."""
    delay_s = 0.05  # long against the noise of a shared machine
    slow = TinyLoader(lambda tier: DelayedTier(tier, delay_s))
    fast = TinyLoader()
    with serve(slow, prefetch="off") as slow_one, serve(fast, prefetch="off") as fast_one:
        for served in (slow_one, fast_one):
            prefill(served, 1)  # warm up
        ratios = []
        for _ in range(REQUESTS):
            (slow_s, slow_wait_s), (fast_s, fast_wait_s) = map(_timed, (slow_one, fast_one))
            ratios.append((slow_wait_s - fast_wait_s) / (slow_s - fast_s))
    assert median(ratios) == pytest.approx(1, abs=0.1)


def _timed(served):
    """One prompt's wall-clock seconds, and the wait that was reported for it."""
    before_s = _wait_s(served)
    wall_s = prefill(served, 1)
    return wall_s, _wait_s(served) - before_s


def _wait_s(served):
    return total(served.client.get("/metrics").text, "engram_prefetch_wait_seconds_sum")


def test_prefetch_changes_no_answer():
    answers = []
    for mode in ("on", "off"):
        with serve(TinyLoader(delayed), prefetch=mode) as served:
            answer = served.generate(PROMPT, max_new_tokens=12, details=True).json()
        answers.append([(t["id"], t["logprob"]) for t in answer["details"]["tokens"]])
    assert answers[0] == answers[1]


def _tokens(answer):
    """Ids and log-probabilities."""
    tokens = answer["details"]["tokens"]
    return [each["id"] for each in tokens], [each["logprob"] for each in tokens]


def test_details_show_what_the_memory_did():
    with serve(TinyLoader()) as served:
        on = served.generate(PROMPT, max_new_tokens=4, details=True).json()
        off = served.generate(PROMPT, max_new_tokens=4, details=True, engram={"enabled": False})
        plain = {"max_new_tokens": 4, "details": True}
        body = {"inputs": PROMPT, "parameters": plain, "engram": {"enabled": False}}
        beside = served.client.post("/generate", json=body)
        both = {**body, "parameters": {**plain, "engram": {"enabled": True}}}
        refused = served.client.post("/generate", json=both)
        served.app.state.runtime.backend.engine.check_integrity()
    layers = on["details"]["engram"]["layers"]
    assert [layer["layer"] for layer in layers] == [8, 10]
    for layer in layers:
        assert layer["rows"] > layer["unique_rows"] > 0
        assert layer["lookup_ms"] > 0
        assert 0 < layer["mean_gate"] < 1
    ids, logprobs = zip(
        *(_tokens(answer) for answer in (off.json(), beside.json(), on)), strict=True
    )
    assert ids[0] == ids[1]
    # the second reuses the first one's prefix: products of other shapes, rounded otherwise
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert logprobs[2] != pytest.approx(logprobs[0], abs=1e-2)
    assert off.json()["details"]["engram"] == {"enabled": False, "gate_scale": 1.0, "layers": []}
    assert refused.status_code == 422
    assert "`engram` and `parameters.engram`" in refused.json()["error"]


def small():
    return TinyLoader(layer_ids=(1, 2), num_hidden_layers=4, hidden_size=32, intermediate_size=64)


def audited(served, result):
    return total(
        served.client.get("/metrics").text, "engram_prefetch_audit_rows_total", result=result
    )


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 32}], ids=["whole", "chunked"])
def test_every_row_over_http_is_audited_and_right(settings):
    """Truncated prompts, prefixes that are known, streams that are left and batches, at once."""
    with serve(small(), prefetch_audit=1.0, **settings) as served:
        prefill(served, 3)
        for limit in (1, 7, 40, 100_000):
            answer = served.generate(PROMPT, max_new_tokens=3, truncate=limit, ignore_eos=True)
            assert answer.status_code == 200, answer.text
        body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 60, "ignore_eos": True}}
        with served.client.stream("POST", "/generate_stream", json=body) as left:
            next(left.iter_lines())
        with ThreadPoolExecutor(4) as pool:
            prompts = [f"{index} {PROMPT}" for index in range(8)]
            answers = pool.map(lambda p: served.generate(p, max_new_tokens=6), prompts)
            assert all(answer.status_code == 200 for answer in answers)
        text = served.client.get("/metrics").text
        assert total(text, "engram_prefix_cache_hits_total") > 0
        rows = sum(audited(served, result) for result in ("match", "mismatch", "unread"))
        assert rows > 0
        assert audited(served, "match") == rows
        # what compute did not have to compute again was not looked up again
        computed = total(text, "engram_rows_looked_up_total")
        assert rows <= computed


def test_a_stale_ticket_is_counted_logged_and_answered(monkeypatch, caplog):
    submit = Prefetcher.submit_prompt

    def stale(self, version, token_ids, history=()):
        return submit(self, version, [*token_ids[1:], token_ids[0]], history)

    with caplog.at_level(logging.ERROR), serve(small(), prefetch_audit=1.0) as served:
        prefill(served, 1)
        before = audited(served, "match")
        assert (before > 0, audited(served, "mismatch")) == (True, 0)
        monkeypatch.setattr(Prefetcher, "submit_prompt", stale)
        prefill(served, 2)
        wait_until(lambda: audited(served, "mismatch") > 0, what="the mismatch counted")
    told = [r.getMessage() for r in caplog.records if "rows are not those" in r.getMessage()]
    assert sorted(text.split(", layer ")[1].split(";")[0] for text in told) == ["1", "2"]


def test_audit_is_off_unless_asked_for():
    with serve(small()) as served:
        prefill(served, 1)
        assert audited(served, "match") == audited(served, "mismatch") == 0
