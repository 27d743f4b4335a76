"""What crosses the engine's border: requests in, events out. No torch here, no HTTP either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engram_core.stats import AuditStats, LookupStats, WaitStats

FinishReason = Literal["length", "eos_token", "stop_sequence"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Values arrive validated; None means "not applied"."""

    max_new_tokens: int = 100
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    top_n_tokens: int = 0
    prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class EngramParams:
    """What a request may say about its memory."""

    enabled: bool = True
    gate_scale: float = 1.0
    per_token: bool = False  # collect gate, n-gram, row ids and tier of each generated token


@dataclass(frozen=True, slots=True)
class Request:
    """One generation job. Times are `time.monotonic()` seconds.

    Computed prefixes are shared between requests of equal ``isolation`` only.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    engram: EngramParams = EngramParams()
    priority: int = 0  # the highest starts first
    isolation: str = ""
    arrival_s: float = 0.0
    queue_deadline_s: float | None = None  # latest start of the first forward
    deadline_s: float | None = None  # latest end


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its text and log-probability (None for the first prompt token)."""

    id: int
    text: str
    logprob: float | None
    special: bool = False


@dataclass(frozen=True, slots=True)
class TokenMemory:
    """What the memory did for one position in one layer (`EngramParams.per_token`)."""

    layer: int
    gate: float
    ngram: str
    row_ids: tuple[int, ...]
    tiers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token. `text_delta` is what may be shown now (stop strings held back).

    `last` says that the FinishEvent follows at once: a stream's last frame carries both, so it
    is only written when the two are there, and no other frame has to wait for its successor.
    """

    index: int  # 1-based, as TGI counts
    token: TokenLogprob
    text_delta: str
    top_tokens: tuple[TokenLogprob, ...] = ()
    memory: tuple[TokenMemory, ...] = ()
    last: bool = False


@dataclass(slots=True)
class LayerUsage:
    """One request's use of the memory in one layer, summed over its steps."""

    layer: int
    lookup_s: float = 0.0
    wait_s: float = 0.0
    rows: int = 0
    unique_rows: int = 0
    rows_by_tier: dict[str, int] = field(default_factory=dict)
    gate_sum: float = 0.0
    gate_count: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in seconds."""

    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The end of a request that succeeded; the last event of its stream."""

    finish_reason: FinishReason
    text: str  # the whole visible text; equals the concatenated deltas
    text_tail: str  # what had been held back and is shown now
    prompt_tokens: int
    generated_tokens: int
    seed: int | None
    timings: Timings
    prefill: tuple[TokenLogprob, ...] = ()
    engram: tuple[LayerUsage, ...] = ()
    cached_tokens: int = 0  # leading prompt tokens that were computed before


FailureKind = Literal["generation", "queue_timeout", "deadline", "cancelled", "engine_dead"]


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """The end of a request that failed; the last event of its stream."""

    kind: FailureKind
    message: str  # for the client: no paths, no input


Event = TokenEvent | FinishEvent | FailureEvent
EventSink = Callable[[Event], None]


class SubmitError(Exception):
    """A request that the engine refuses at the door."""


class QueueFullError(SubmitError):
    """The waiting queue is at its limit; try again later."""


class EngineClosedError(SubmitError):
    """The engine is draining, stopped or dead."""


class PromptTooLongError(SubmitError):
    """The request can never fit; the message names both numbers."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one engine step did."""

    prefill_tokens: int
    decode_tokens: int
    batch_size: int
    duration_s: float
    preemptions: int
    lookups: tuple[LookupStats, ...] = ()
    waits: tuple[WaitStats, ...] = ()
    prefix_queried_tokens: int = 0  # of the sequences that were admitted
    prefix_hit_tokens: int = 0
    audited: AuditStats | None = None  # rows that were looked up again


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What a finished (or failed) request looked like; times in seconds."""

    outcome: str  # a FinishReason or a FailureKind
    failed: bool
    prompt_tokens: int
    generated_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    time_to_first_token_s: float | None
    inter_token_s: tuple[float, ...] = ()


class Recorder(Protocol):
    """Where the engine reports; `server.metrics` implements it. Called on the engine thread."""

    def record_step(self, stats: StepStats) -> None:
        """Take one engine step's statistics."""

    def record_lookups(self, lookups: Sequence[LookupStats]) -> None:
        """Take lookups that no step used."""

    def record_request(self, stats: RequestStats) -> None:
        """Take the statistics of a request that ended."""


class NullRecorder:
    """A recorder for use without a server (benchmarks, evaluation)."""

    def record_step(self, stats: StepStats) -> None:
        """Drop the step's statistics."""

    def record_lookups(self, lookups: Sequence[LookupStats]) -> None:
        """Drop the lookups."""

    def record_request(self, stats: RequestStats) -> None:
        """Drop the request's statistics."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot for /ready, /info and the gauges; cheap, from any thread."""

    alive: bool
    running: int
    waiting: int
    waiting_tokens: int
    kv_blocks_used: int
    kv_blocks_total: int
    open_tickets: int
    last_step_s: float  # monotonic time of the engine thread's last heartbeat
    failure: str | None = None
    kv_blocks_kept: int = 0  # unused ones that still hold a prefix
    decode_path: str = "eager"  # "graphs" or "eager", with the reason
