"""Metrics: what the server and the engine report, as Prometheus families.

The only importer of prometheus_client. One registry per application: nothing is shared between
two servers in one process. Label values never come from client text.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from server.memory_totals import MemorySource, MemoryTotals
from server.metric_table import (
    ALL_METRICS,
    HOT_CACHE_METRICS,
    PREFIX,
    ROW_SERVER_METRICS,
    SCRAPED_METRICS,
    STATUS_METRICS,
    TRANSFER_METRIC,
    MetricSpec,
)

if TYPE_CHECKING:  # the engine is above this module
    from engram_core.stats import LookupStats
    from server.engine.types import EngineStatus, RequestStats, StepStats

FINISH_REASONS = ("length", "eos_token", "stop_sequence")
OUTCOMES = ("hidden", "partial", "late", "cancelled", "inline")
AUDIT_RESULTS = ("match", "mismatch", "unread")
FAILURE_REASONS = (
    "validation",
    "unauthorized",
    "not_found",
    "method_not_allowed",
    "too_large",
    "timeout",
    "overloaded",
    "unavailable",
    "generation",
    "queue_timeout",
    "deadline",
    "cancelled",
    "disconnected",
    "stream_stall",
    "engine_dead",
    "internal",
)

# what each of HOT_CACHE_METRICS and of ROW_SERVER_METRICS shows
HOT_CACHE_FIELDS = (
    "hits", "misses", "admissions", "evictions", "resident_rows", "capacity_rows", "nbytes",
)  # fmt: skip
ROW_SERVER_FIELDS = ("is_open", "attempts", "failures", "retries", "turned_away")

StatusSource = Callable[[], "EngineStatus | None"]
AnyMetric = Counter | Gauge | Histogram


class Metrics:
    """All metrics of one server; a `Recorder` for its engine. Thread-safe."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._families: dict[str, AnyMetric] = {}
        self._memories: Tally[str] = Tally()  # loaded copies by id
        self._memories_lock = threading.Lock()
        self._totals = MemoryTotals()
        self._children: dict[tuple[str, ...], AnyMetric] = {}
        for spec in ALL_METRICS:
            if spec.name not in SCRAPED_METRICS and spec is not TRANSFER_METRIC:
                self._register(spec)
        self._registry.register(_MemoryCollector(self._totals))
        ProcessCollector(registry=self._registry)
        self._start_at_zero()

    def _register(self, spec: MetricSpec) -> None:
        if spec.kind == "histogram":
            self._families[spec.name] = Histogram(
                spec.name, spec.help, spec.labels, registry=self._registry, buckets=spec.buckets
            )
            return
        kind = Counter if spec.kind == "counter" else Gauge
        self._families[spec.name] = kind(spec.name, spec.help, spec.labels, registry=self._registry)

    def _start_at_zero(self) -> None:
        for name, values in (
            ("requests_finished_total", FINISH_REASONS),
            ("prefetch_outcomes_total", OUTCOMES),
            ("request_failures_total", FAILURE_REASONS),
            ("prefetch_audit_rows_total", AUDIT_RESULTS),
        ):
            for value in values:
                self._child(name, value)

    def _child(self, name: str, *labels: str) -> AnyMetric:
        """The family or its labelled child; children are looked up once."""
        key = (name, *labels)
        child = self._children.get(key)
        if child is None:
            family = self._families[PREFIX + name]
            child = self._children[key] = family.labels(*labels) if labels else family
        return child

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        cast(Counter, self._child(name, *labels)).inc(by)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        cast(Histogram, self._child(name, *labels)).observe(value)

    def _set(self, name: str, value: float, *labels: str) -> None:
        cast(Gauge, self._child(name, *labels)).set(value)

    def _drop(self, name: str, *labels: str) -> None:
        """Forget a family's children, or the one with these labels."""
        key = (name, *labels)
        for each in [known for known in self._children if known[: len(key)] == key]:
            self._families[PREFIX + name].remove(*each[1:])
            del self._children[each]

    # the HTTP side

    def request_started(self) -> None:
        """An HTTP request has arrived."""
        self._count("requests_in_progress")

    def request_ended(self, route: str, code: int, duration_s: float | None = None) -> None:
        """An HTTP request is over; `duration_s` for those that generate."""
        self._count("requests_in_progress", by=-1)
        self._count("requests_total", route, str(code))
        if duration_s is not None:
            self._observe("request_duration_seconds", duration_s, route)

    def record_failure(self, reason: str) -> None:
        """A request failed or was refused."""
        self._count("request_failures_total", reason)

    def record_tokenize(self, duration_s: float) -> None:
        """A prompt was tokenised."""
        self._observe("tokenize_duration_seconds", duration_s)

    # the engine (Recorder)

    def record_request(self, stats: RequestStats) -> None:
        """A request left the engine."""
        if stats.failed:
            return  # counted where it is answered
        self._count("requests_finished_total", stats.outcome)
        self._count("prompt_tokens_total", by=stats.prompt_tokens)
        self._count("generated_tokens_total", by=stats.generated_tokens)
        self._observe("request_prompt_tokens", stats.prompt_tokens)
        self._observe("request_generated_tokens", stats.generated_tokens)
        self._observe("request_queue_seconds", stats.queue_s)
        self._observe("request_prefill_seconds", stats.prefill_s)
        self._observe("request_decode_seconds", stats.decode_s)
        if stats.time_to_first_token_s is not None:
            self._observe("time_to_first_token_seconds", stats.time_to_first_token_s)
        for gap_s in stats.inter_token_s:
            self._observe("inter_token_latency_seconds", gap_s)

    def record_step(self, stats: StepStats) -> None:
        """The engine made one step."""
        self._observe("batch_size", stats.batch_size)
        self._observe("step_duration_seconds", stats.duration_s)
        if stats.prefix_queried_tokens:
            self._count("prefix_cache_queries_total", by=stats.prefix_queried_tokens)
            self._count("prefix_cache_hits_total", by=stats.prefix_hit_tokens)
        if stats.preemptions:
            self._count("preemptions_total", by=stats.preemptions)
        for wait in stats.waits:
            self._observe("prefetch_wait_seconds", wait.wait_s, str(wait.layer), wait.phase)
        self.record_lookups(stats.lookups)
        if stats.audited is not None:
            for result, rows in asdict(stats.audited).items():
                self._count("prefetch_audit_rows_total", result, by=rows)

    def record_lookups(self, lookups: Sequence[LookupStats]) -> None:
        """Lookups met compute, or were given up."""
        for lookup in lookups:
            self._record_lookup(lookup)

    def _record_lookup(self, lookup: LookupStats) -> None:
        layer, tiers = str(lookup.layer), tuple(lookup.rows_by_tier)
        tier = tiers[0] if len(tiers) == 1 else "mixed"
        if tiers:  # a lookup that was cancelled before it ran took no time
            self._observe("lookup_duration_seconds", lookup.duration_s, layer, tier, lookup.phase)
        self._observe("hash_duration_seconds", lookup.hash_s)
        self._count("prefetch_outcomes_total", lookup.outcome)
        self._count("rows_unique_total", layer, by=lookup.unique_rows)
        for order, rows in lookup.rows_by_order.items():
            self._count("rows_looked_up_total", layer, str(order), by=rows)
        for name, rows in lookup.rows_by_tier.items():
            self._count("rows_read_total", name, by=rows)
        for name, duration_s in lookup.duration_by_tier_s.items():
            self._observe("tier_read_duration_seconds", duration_s, name)
        if lookup.transferred_bytes:
            self._record_transfer(lookup.transferred_bytes)

    def _record_transfer(self, num_bytes: int) -> None:
        if TRANSFER_METRIC.name not in self._families:
            self._register(TRANSFER_METRIC)
        self._count("transferred_bytes_total", "host", "device", by=num_bytes)

    # what is served

    def watch(self, status: StatusSource, is_ready: Callable[[], bool]) -> None:
        """Read these at every scrape: the engine's status (None before it runs), readiness."""
        self._registry.register(_StatusCollector(status, is_ready))

    def describe_build(self, version: str) -> None:
        """Name the running versions."""
        self._set("build_info", 1, version, platform.python_version())

    def describe_model(self, model: str, device: str, dtype: str, memory: str) -> None:
        """Name what is served; `memory` is the memory version's id or ``none``."""
        self._drop("model_info")  # its labels name one memory at a time
        self._set("model_info", 1, model, device, dtype, memory)

    def meet_memory(self, memory: str, source: MemorySource | None = None) -> None:
        """A memory version is served from now on; another copy of it may still be read."""
        if source is not None:
            self._totals.add(source)
        with self._memories_lock:
            self._memories[memory] += 1
            self._set("memory_version_info", self._memories[memory], memory)

    def forget_memory(self, memory: str) -> None:
        """A memory version was freed."""
        self._totals.retire()
        with self._memories_lock:
            self._memories[memory] -= 1
            if self._memories[memory]:
                self._set("memory_version_info", self._memories[memory], memory)
            else:
                self._drop("memory_version_info", memory)

    def record_load(self, phases_s: Mapping[str, float]) -> None:
        """How long each phase of loading took."""
        for phase, duration_s in phases_s.items():
            self._set("model_load_duration_seconds", duration_s, phase)

    def describe_table(
        self, layer: int, num_bytes: int, resident_bytes: Mapping[str, int], why: str
    ) -> None:
        """Size of a layer's table, what its tiers occupy, outermost first, and why they do."""
        name = str(layer)
        self._set("table_bytes", num_bytes, name)
        for family in ("table_resident_bytes", "memory_tier_info"):
            self._drop(family, name)  # another memory may lie elsewhere
        for tier, resident in resident_bytes.items():
            self._set("table_resident_bytes", resident, name, tier)
        if resident_bytes:
            self._set("memory_tier_info", 1, name, list(resident_bytes)[-1], why)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text, in the format that an Accept header asks for, and its type."""
        encode, content_type = choose_encoder(accept)
        return encode(_WithoutCreated(self._registry)), content_type


class _StatusCollector(Collector):
    """Gauges that are read from the engine when somebody scrapes."""

    def __init__(self, status: StatusSource, is_ready: Callable[[], bool]) -> None:
        self._status, self._is_ready = status, is_ready
        self._help = {spec.name: spec.help for spec in ALL_METRICS}

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(name, self._help[name]) for name in sorted(STATUS_METRICS)]

    def collect(self) -> Iterator[Metric]:
        values = {"ready": float(self._is_ready()), **self._engine_values()}
        for name, value in values.items():
            yield GaugeMetricFamily(PREFIX + name, self._help[PREFIX + name], value=value)

    def _engine_values(self) -> dict[str, float]:
        status = self._status()
        if status is None:
            return {}
        return {
            "running_requests": status.running,
            "waiting_requests": status.waiting,
            "kv_cache_usage_ratio": status.kv_blocks_used / max(status.kv_blocks_total, 1),
            "open_prefetch_tickets": status.open_tickets,
            "prefix_cache_blocks": status.kv_blocks_kept,
        }


class _MemoryCollector(Collector):
    """What the tiers of the memories counted, read when somebody scrapes."""

    def __init__(self, totals: MemoryTotals) -> None:
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        return [_family(spec) for spec in (*HOT_CACHE_METRICS, *ROW_SERVER_METRICS)]

    def collect(self) -> Iterator[Metric]:
        stats = self._totals.stats()
        caches = {(str(layer), name): each for (layer, name), each in stats.hot_caches.items()}
        servers = {(address,): each for address, each in stats.row_servers.items()}
        for specs, fields, found in (
            (HOT_CACHE_METRICS, HOT_CACHE_FIELDS, caches),
            (ROW_SERVER_METRICS, ROW_SERVER_FIELDS, servers),
        ):
            for spec, field in zip(specs, fields, strict=True):
                family = _family(spec)
                for labels, each in sorted(found.items()):
                    family.add_metric(labels, float(getattr(each, field)))
                yield family


def _family(spec: MetricSpec) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    return kind(spec.name, spec.help, labels=spec.labels)


class _WithoutCreated(Collector):
    """A registry's families without the `_created` samples, which double its size."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family
