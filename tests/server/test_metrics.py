"""Metrics: complete, well formed, small, and fed by what really happens."""

import logging
import shutil
import subprocess

import pytest
from fakes.http import metric_value, serve, wait_until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from engram_core.stats import LookupStats
from server.engine.types import EngineStatus, RequestStats, StepStats
from server.metric_table import ALL_METRICS, TRANSFER_METRIC
from server.metrics import FAILURE_REASONS, Metrics


def scraped(served):
    return list(text_string_to_metric_families(served.client.get("/metrics").text))


def sample_names(families):
    return {sample.name for family in families for sample in family.samples}


def test_every_metric_gets_data(served):
    served.generate(max_new_tokens=3)
    served.stream(max_new_tokens=3)
    wait_until(lambda: served.metric("engram_requests_in_progress") == 1)  # the scrape itself
    names = sample_names(scraped(served))
    for spec in ALL_METRICS:
        if spec is TRANSFER_METRIC:
            continue
        name = f"{spec.name}_count" if spec.kind == "histogram" else spec.name
        assert name in names, spec.name


def test_nothing_is_exported_that_the_table_does_not_name(served):
    ours = {spec.name.removesuffix("_total") for spec in ALL_METRICS}
    for family in scraped(served):
        assert family.name in ours or family.name.startswith(("process_", "python_"))
        assert family.documentation


def test_counts_of_requests(served):
    before = served.metric("engram_generated_tokens_total")
    requests = served.client.get("/metrics").text
    answered = metric_value(requests, "engram_requests_total", route="/info", code="200") if (
        'route="/info"' in requests
    ) else 0  # fmt: skip
    served.client.get("/info")
    served.client.get("/no/such/path")
    served.generate(max_new_tokens=4)
    assert served.metric("engram_requests_total", route="/info", code="200") == answered + 1
    assert served.metric("engram_requests_total", route="other", code="404") >= 1
    assert served.metric("engram_generated_tokens_total") == before + 4
    assert served.metric("engram_requests_finished_total", finish_reason="length") >= 1
    assert served.metric("engram_request_duration_seconds_count", route="/generate") >= 1
    assert "/no/such/path" not in served.client.get("/metrics").text


def test_failures_are_counted_once_by_reason(served):
    for reason, make in (
        ("validation", lambda: served.generate(top_k=-1)),
        ("not_found", lambda: served.client.get("/nope")),
        ("method_not_allowed", lambda: served.client.get("/generate")),
        ("too_large", lambda: served.client.post("/generate", content=b"x" * 2_100_000)),
    ):
        before = served.metric("engram_request_failures_total", reason=reason)
        make()
        assert served.metric("engram_request_failures_total", reason=reason) == before + 1


def test_hidden_share_can_be_computed(served):
    served.generate(max_new_tokens=3)
    text = served.client.get("/metrics").text
    lookups = metric_value(text, "engram_lookup_duration_seconds_sum", layer="1", tier="host")
    assert lookups > 0
    assert metric_value(text, "engram_prefetch_wait_seconds_count", layer="1", phase="decode") > 0
    assert metric_value(text, "engram_prefetch_outcomes_total", outcome="hidden") > 0
    assert metric_value(text, "engram_rows_looked_up_total", layer="1", order="3") > 0
    assert metric_value(text, "engram_rows_read_total", tier="host") > 0


def test_what_is_served(served):
    text = served.client.get("/metrics").text
    assert metric_value(text, "engram_model_info", device="cpu", memory="fake-1") == 1
    assert metric_value(text, "engram_table_bytes", layer="1") == 4096
    assert metric_value(text, "engram_table_resident_bytes", layer="1", tier="host") == 4096
    assert metric_value(text, "engram_table_resident_bytes", layer="1", tier="hot") == 512
    why = {"layer": "1", "tier": "host", "why": "host: fake"}
    assert metric_value(text, "engram_memory_tier_info", **why) == 1
    assert metric_value(text, "engram_model_load_duration_seconds", phase="tables") == 0.2
    assert metric_value(text, "engram_build_info") == 1


def test_what_the_tiers_counted(served):
    text = served.client.get("/metrics").text
    names = ("hits_total", "misses_total", "admissions_total", "evictions_total")
    sizes = ("resident_rows", "capacity_rows", "bytes")
    cache = {"layer": "1", "tier": "hot"}
    found = [metric_value(text, f"engram_hot_cache_{n}", **cache) for n in (*names, *sizes)]
    assert found == [8, 2, 3, 1, 2, 5, 512]
    names = ("breaker_open", "attempts_total", "failures_total", "retries_total")
    server = {"server": "10.0.0.7:9100"}
    found = [metric_value(text, f"engram_row_server_{name}", **server) for name in names]
    assert found == [1, 9, 4, 2]


def test_a_table_that_lies_elsewhere_after_a_swap_leaves_nothing_behind():
    metrics = Metrics()
    metrics.describe_table(1, 10, {"hot": 2, "ssd": 10}, "ssd: too large")
    metrics.describe_table(1, 20, {"host": 20}, "dram: it fits")
    text = metrics.render("")[0].decode()
    assert "ssd" not in text
    assert 'tier="hot"' not in text
    assert metric_value(text, "engram_memory_tier_info", why="dram: it fits", tier="host") == 1


def test_formats(served):
    plain = served.client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "_created" not in plain.text
    assert len(plain.content) < 100 * 1024
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    other = served.client.get("/metrics", headers=accept)
    assert other.headers["content-type"].startswith("application/openmetrics-text")
    assert list(openmetrics(other.text))
    assert served.client.get("/metrics/").status_code == 404  # a plain route: no redirect


@pytest.mark.system
def test_promtool_finds_nothing(served):
    served.generate(max_new_tokens=3)
    assert shutil.which("promtool"), "needs promtool (Debian: prometheus)"
    text = served.client.get("/metrics").content
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr


def test_two_servers_share_nothing():
    first, second = Metrics(), Metrics()
    first.record_failure("validation")
    text = second.render("")[0].decode()
    assert metric_value(text, "engram_request_failures_total", reason="validation") == 0


def test_a_mixed_and_a_transferred_lookup():
    metrics = Metrics()
    assert b"transferred" not in metrics.render("")[0]
    lookup = LookupStats(
        layer=3, phase="prefill", outcome="late", duration_s=0.5, hash_s=0.1, rows=4,
        unique_rows=3, rows_by_tier={"device": 1, "host": 3}, transferred_bytes=128,
    )  # fmt: skip
    step = StepStats(
        5, 0, 1, 0.1, preemptions=2, lookups=(lookup,), prefix_queried_tokens=40,
        prefix_hit_tokens=32,
    )  # fmt: skip
    metrics.record_step(step)
    metrics.record_step(step)
    text = metrics.render("")[0].decode()
    assert metric_value(text, "engram_lookup_duration_seconds_sum", tier="mixed") == 1.0
    assert metric_value(text, "engram_transferred_bytes_total", src="host", dst="device") == 256
    assert metric_value(text, "engram_preemptions_total") == 4
    assert metric_value(text, "engram_prefix_cache_queries_total") == 80
    assert metric_value(text, "engram_prefix_cache_hits_total") == 64


def test_a_failed_request_feeds_no_histogram():
    metrics = Metrics()
    metrics.record_request(RequestStats("deadline", True, 5, 2, 0.1, 0.1, 0.1, None))
    text = metrics.render("")[0].decode()
    assert metric_value(text, "engram_request_prompt_tokens_count") == 0


def test_gauges_read_the_engine_when_scraped():
    metrics = Metrics()
    status = EngineStatus(True, 3, 2, 50, 4, 16, 5, 0.0, kv_blocks_kept=7)
    metrics.watch(lambda: status, lambda: True)
    text = metrics.render("")[0].decode()
    assert metric_value(text, "engram_running_requests") == 3
    assert metric_value(text, "engram_waiting_requests") == 2
    assert metric_value(text, "engram_kv_cache_usage_ratio") == 0.25
    assert metric_value(text, "engram_open_prefetch_tickets") == 5
    assert metric_value(text, "engram_prefix_cache_blocks") == 7


def test_reasons_are_known_in_advance(served, caplog):
    """A failure type that is not in the list would appear as a new series at its first use."""
    from server.streaming import _FAILURES

    assert set(_FAILURES) <= set(FAILURE_REASONS)


def test_an_unexpected_error_is_counted_and_told_apart(served, monkeypatch, caplog):
    def broken(*args):
        raise RuntimeError("a secret path /etc/x")

    monkeypatch.setattr(type(served.engine), "submit", broken)
    with caplog.at_level(logging.ERROR, logger="engram"):
        answer = served.generate()
    assert answer.status_code == 500
    assert answer.json()["error_type"] == "internal"
    assert "secret" not in answer.text
    assert "secret path" in caplog.text
    assert served.metric("engram_request_failures_total", reason="internal") == 1


def test_scraping_while_loading(loader):
    loader.may_finish.clear()
    with serve(loader, ready=False) as served:
        text = served.client.get("/metrics").text
        assert metric_value(text, "engram_ready") == 0
        assert "engram_running_requests" not in text
