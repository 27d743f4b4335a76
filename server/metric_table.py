"""Every metric this server exports: name, kind, labels, help. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "engram_"

REQUEST_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
LOOKUP_BUCKETS_S = tuple(1e-5 * 2**k for k in range(18))  # 10 us to 1.3 s
TOKEN_COUNT_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family; `name` is complete, prefix and unit included."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(PREFIX + name, "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(PREFIX + name, "gauge", text, labels)


def _histogram(name: str, buckets: tuple[float, ...], text: str, *labels: str) -> MetricSpec:
    return MetricSpec(PREFIX + name, "histogram", text, labels, buckets)


HTTP_METRICS = (
    _counter("requests_total", "HTTP requests answered.", "route", "code"),
    _gauge("requests_in_progress", "HTTP requests being answered."),
    _counter("request_failures_total", "Requests that failed or were refused, by why.", "reason"),
    _histogram(
        "request_duration_seconds",
        REQUEST_BUCKETS_S,
        "Time from a generation request's arrival to the end of its answer.",
        "route",
    ),
    _histogram("tokenize_duration_seconds", TOKEN_BUCKETS_S, "Time to tokenise a prompt."),
)

REQUEST_METRICS = (
    _counter("requests_finished_total", "Requests generated to their end.", "finish_reason"),
    _histogram("request_queue_seconds", REQUEST_BUCKETS_S, "Wait for the first engine step."),
    _histogram("request_prefill_seconds", REQUEST_BUCKETS_S, "Time to process a prompt."),
    _histogram("request_decode_seconds", REQUEST_BUCKETS_S, "Time to generate after the prompt."),
    _histogram(
        "time_to_first_token_seconds",
        REQUEST_BUCKETS_S,
        "Time from a request's arrival over HTTP to its first token, queue included.",
    ),
    _histogram(
        "inter_token_latency_seconds", TOKEN_BUCKETS_S, "Time between two tokens of a request."
    ),
    _counter("prompt_tokens_total", "Prompt tokens of finished requests."),
    _counter("generated_tokens_total", "Generated tokens of finished requests."),
    _histogram("request_prompt_tokens", TOKEN_COUNT_BUCKETS, "Prompt length in tokens."),
    _histogram("request_generated_tokens", TOKEN_COUNT_BUCKETS, "Answer length in tokens."),
)

ENGINE_METRICS = (
    _gauge("running_requests", "Requests that generate now."),
    _gauge("waiting_requests", "Requests that wait for a place in the batch."),
    _gauge("kv_cache_usage_ratio", "Used share of the blocks for keys and values, 0 to 1."),
    _gauge("open_prefetch_tickets", "Row lookups submitted and not yet used up."),
    _histogram("batch_size", BATCH_BUCKETS, "Sequences in one engine step."),
    _histogram(
        "step_duration_seconds", TOKEN_BUCKETS_S, "Time of one engine step, on the host's clock."
    ),
    _gauge("prefix_cache_blocks", "Unused blocks that are kept because a prefix is in them."),
    _counter("prefix_cache_queries_total", "Tokens looked up in the prefix cache."),
    _counter("prefix_cache_hits_total", "Tokens found there, which need no computing."),
    _counter("preemptions_total", "Requests put back to waiting for want of cache blocks."),
)

MEMORY_METRICS = (
    _histogram(
        "lookup_duration_seconds",
        LOOKUP_BUCKETS_S,
        "Time from submitting a row lookup until its rows are ready, once per ticket and layer, "
        "on the host's clock; tier is mixed where several delivered.",
        "layer",
        "tier",
        "phase",
    ),
    _histogram(
        "tier_read_duration_seconds",
        LOOKUP_BUCKETS_S,
        "A tier's share of a row lookup, on the host's clock.",
        "tier",
    ),
    _histogram("hash_duration_seconds", LOOKUP_BUCKETS_S, "Time to hash n-grams to row ids."),
    _histogram(
        "prefetch_wait_seconds",
        LOOKUP_BUCKETS_S,
        "Time compute really waited for rows at a layer, once per step; zeros included.",
        "layer",
        "phase",
    ),
    _counter(
        "prefetch_outcomes_total",
        "Row lookups by how they met compute: hidden, partial, late, inline or cancelled.",
        "outcome",
    ),
    _counter(
        "prefetch_audit_rows_total",
        "Rows that --prefetch-audit read again, by whether compute had got the same bits; unread: "
        "their tier failed.",
        "result",
    ),
    _counter("rows_looked_up_total", "Rows asked for.", "layer", "order"),
    _counter("rows_unique_total", "Distinct rows within their lookup.", "layer"),
    _counter("rows_read_total", "Rows delivered, by the tier that had them.", "tier"),
    _gauge("table_bytes", "Size of a layer's table.", "layer"),
    _gauge(
        "table_resident_bytes",
        "Bytes that a layer's tiers occupy, each for itself: the hot cache and what is behind it.",
        "layer",
        "tier",
    ),
    _gauge(
        "memory_tier_info",
        "1, with the tier that has a layer's rows and why it was chosen.",
        "layer",
        "tier",
        "why",
    ),
)

# read from all memories that are held, and kept as sums of those that were freed
HOT_CACHE_METRICS = (
    _counter(
        "hot_cache_hits_total", "Row occurrences read from a cache of hot rows.", "layer", "tier"
    ),
    _counter(
        "hot_cache_misses_total",
        "Row occurrences that were fetched, or waited for, from the tier behind it.",
        "layer",
        "tier",
    ),
    _counter("hot_cache_admissions_total", "Rows that entered the hot cache.", "layer", "tier"),
    _counter("hot_cache_evictions_total", "Rows that left it.", "layer", "tier"),
    _gauge("hot_cache_resident_rows", "Rows in the hot cache.", "layer", "tier"),
    _gauge("hot_cache_capacity_rows", "Rows that fit into it.", "layer", "tier"),
    _gauge("hot_cache_bytes", "Memory of the hot cache alone.", "layer", "tier"),
)
ROW_SERVER_METRICS = (
    _gauge(
        "row_server_breaker_open",
        "1 while the circuit breaker turns reads of a row server away, but for a probe; 0 closed.",
        "server",
    ),
    _counter("row_server_attempts_total", "Reads sent to a row server, repeats counted.", "server"),
    _counter("row_server_failures_total", "Attempts that brought no rows.", "server"),
    _counter("row_server_retries_total", "Attempts that repeated a failed one.", "server"),
    _counter(
        "row_server_turned_away_total",
        "Reads that the open circuit breaker failed without asking.",
        "server",
    ),
)

# registered with its first value: on a CPU nothing is ever transferred
TRANSFER_METRIC = _counter(
    "transferred_bytes_total", "Bytes of rows copied between memories.", "src", "dst"
)

SERVER_METRICS = (
    _gauge("model_load_duration_seconds", "Time of each phase of loading.", "phase"),
    _gauge("ready", "1 while requests are accepted."),
    _gauge("build_info", "1, with the versions of this build.", "version", "python"),
    _gauge("model_info", "1, with what is served.", "model", "device", "dtype", "memory"),
    _gauge(
        "memory_version_info",
        "Loaded copies of each memory that is still read, by its id.",
        "version",
    ),
)

STATUS_METRICS = frozenset(  # read from the engine at every scrape
    {
        "engram_running_requests",
        "engram_waiting_requests",
        "engram_kv_cache_usage_ratio",
        "engram_open_prefetch_tickets",
        "engram_prefix_cache_blocks",
        "engram_ready",
    }
)

SCRAPED_METRICS = STATUS_METRICS | {spec.name for spec in HOT_CACHE_METRICS + ROW_SERVER_METRICS}

ALL_METRICS = (
    *HTTP_METRICS,
    *REQUEST_METRICS,
    *ENGINE_METRICS,
    *MEMORY_METRICS,
    *HOT_CACHE_METRICS,
    *ROW_SERVER_METRICS,
    TRANSFER_METRIC,
    *SERVER_METRICS,
)
