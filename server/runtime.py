"""The state that routes, middleware and lifecycle share: phase, backend, open generations.

Created before anything is loaded; one per application. Knows nothing about HTTP routes, uvicorn
or how a model is loaded. Methods are for the event loop's thread unless they say otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from engram_core.errors import StateError
from server.admission import Admission
from server.config import Settings
from server.engine.types import EngineStatus, EventSink, FailureEvent, Request
from server.generation import Generation
from server.mailbox import Mailbox
from server.memory_info import MemoryFacts
from server.memory_totals import MemorySource
from server.metrics import Metrics
from server.tokenization import PromptTokenizer
from server.wire.errors import ApiError, unavailable

LOG = logging.getLogger("engram.lifecycle")


class EnginePort(Protocol):
    """What the HTTP side uses of an engine."""

    def start(self) -> None:
        """Start the engine's thread."""

    def submit(self, request: Request, sink: EventSink) -> None:
        """Queue a request; raises a SubmitError. Events arrive on the engine's thread."""

    def abort(self, request_id: str) -> None:
        """Drop a request; unknown ids are fine."""

    def drain(self) -> None:
        """Refuse new requests from now on."""

    def stop(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for what runs, fail the rest as cancelled, end the thread."""

    def status(self) -> EngineStatus:
        """A snapshot, from any thread."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What loading produces: everything the HTTP side needs to serve.

    Attributes:
        engine: not yet started.
        tokenizer: a transformers fast tokenizer or a `tokenizers.Tokenizer`.
        max_model_len: longest prompt plus answer in tokens, as the engine enforces it.
        device: where the model runs, e.g. ``cpu``.
        dtype: number format of the weights, e.g. ``bfloat16``.
        has_memory: whether an Engram memory is attached.
        memory_id: id of the memory version, ``none`` without one.
        model_info: JSON-ready facts for /info about the model.
        engram_info: JSON-ready facts for /info about the memory (tables, tiers, prefetch path).
        table_bytes: bytes of each Engram layer's table.
        resident_bytes: bytes that each layer's tiers occupy, the outermost first.
        why_tiers: where the tables lie and why. memory: what its tiers count.
        load_s: seconds of each phase of loading.
        swap: serves another memory from now on (see `server.memory_swap`); None without a memory.
        close: releases what was opened; called once after the engine stopped.
    """

    engine: EnginePort
    tokenizer: Any
    max_model_len: int
    device: str
    dtype: str
    has_memory: bool = False
    memory_id: str = "none"
    model_info: Mapping[str, Any] = field(default_factory=dict)
    engram_info: Mapping[str, Any] = field(default_factory=dict)
    table_bytes: Mapping[int, int] = field(default_factory=dict)
    resident_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    why_tiers: str = ""
    memory: MemorySource | None = None
    load_s: Mapping[str, float] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    swap: SwapMemory | None = None


Forget = Callable[[str], None]  # receives the id of a memory that nobody reads any more
SwapMemory = Callable[[str, Forget], MemoryFacts]
Progress = Callable[[str, float], None]  # phase name, fraction 0 to 1; from any thread
LoadBackend = Callable[[Settings, Metrics, Progress], Backend]


class Phase(StrEnum):
    """What the server is doing, in the order in which it happens."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"  # loading failed
    DEAD = "dead"  # the engine died


class Runtime:
    """The live state of one server."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.phase = Phase.LOADING
        self.load_phase, self.load_fraction = "starting", 0.0
        self.failure: str | None = None
        self.backend: Backend | None = None
        self.tokenizer: PromptTokenizer | None = None
        self.admission = Admission(settings.max_num_seqs + settings.max_queue_len)
        self.load_thread: threading.Thread | None = None
        self.stopped = False
        self._open: dict[str, Generation] = {}
        self._mailbox: Mailbox | None = None
        metrics.watch(self.engine_status, self.is_ready)

    def set_progress(self, phase: str, fraction: float) -> None:
        """Note how far loading is, and log each phase once; callable from any thread."""
        if phase != self.load_phase:
            LOG.info("loading: %s", phase)
        self.load_phase, self.load_fraction = phase, min(max(fraction, 0.0), 1.0)

    def set_ready(self, backend: Backend) -> None:
        """Take a loaded backend into service."""
        self.backend, self.tokenizer = backend, PromptTokenizer(backend.tokenizer)
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    def fail_loading(self, message: str) -> None:
        """Loading failed; `message` is one sentence for the operator."""
        self.phase, self.failure = Phase.FAILED, message

    def start_drain(self) -> None:
        """Take no new work; callable from a signal handler, again and again.

        The engine goes on accepting: a request that was let in may still be on its way to it.
        """
        if self.phase in (Phase.LOADING, Phase.READY):
            self.phase = Phase.DRAINING

    @property
    def model_name(self) -> str:
        """What answers call the model: the operator's name for it, else its own."""
        settings = self.settings
        own = self.backend.model_info.get("name") if self.backend else None
        return settings.served_model_name or own or settings.model_name

    def engine_status(self) -> EngineStatus | None:
        """The engine's snapshot; None while there is no engine."""
        return self.backend.engine.status() if self.backend else None

    def is_ready(self) -> bool:
        """Whether a request sent now would be served."""
        return self.unready_reason() is None

    def unready_reason(self) -> str | None:
        """Why new work is not served: a phase, or ``stalled``; None when it is."""
        if self.phase is not Phase.READY:
            return self.phase.value
        return "stalled" if self.is_stalled() else None

    def is_stalled(self) -> bool:
        """Whether requests run and the engine's last step is too long ago."""
        status = self.engine_status()
        if status is None or not status.running:
            return False
        age_s = time.monotonic() - status.last_step_s
        return age_s > self.settings.engine_stall_timeout

    def refusal(self) -> ApiError | None:
        """The answer to new work in the present phase; None while it is welcome."""
        messages = {
            Phase.LOADING: "the model is still loading",
            Phase.DRAINING: "the server is shutting down",
            Phase.FAILED: "the model could not be loaded",
            Phase.DEAD: "the engine has stopped",
        }
        message = messages.get(self.phase)
        return None if message is None else unavailable(message)

    @property
    def memory_id(self) -> str:
        """Id of the memory that new requests read, ``none`` without one."""
        return "none" if self.backend is None else self.backend.memory_id

    def swap_memory(self, name: str) -> str:
        """Serve the artefact `name` from now on; returns the memory's id. Takes its time.

        Raises:
            StateError: no memory is served, or another swap is under way.
            LoadError, EngramError: the artefact cannot be served.
        """
        backend, _ = self.require_backend()
        if backend.swap is None:
            raise StateError("no memory is served; accepted: a server that was started with one")
        facts = backend.swap(name, self.metrics.forget_memory)
        self.backend = replace(
            backend,
            memory_id=facts.id,
            engram_info=facts.info,
            table_bytes=facts.table_bytes,
            resident_bytes=facts.resident_bytes,
            why_tiers=facts.why,
            memory=facts.version,
        )
        self.describe_memory()
        return facts.id

    def describe_memory(self) -> None:
        """Tell the metrics what memory is served, and where its tables lie."""
        backend, _ = self.require_backend()
        metrics = self.metrics
        metrics.describe_model(self.model_name, backend.device, backend.dtype, backend.memory_id)
        if backend.has_memory:
            metrics.meet_memory(backend.memory_id, backend.memory)
        for layer, num_bytes in backend.table_bytes.items():
            resident = backend.resident_bytes.get(layer, {})
            metrics.describe_table(layer, num_bytes, resident, backend.why_tiers)

    def require_backend(self) -> tuple[Backend, PromptTokenizer]:
        """The loaded backend. Raises ApiError 503 before there is one."""
        if self.backend is None or self.tokenizer is None:
            raise unavailable("the model is still loading")
        return self.backend, self.tokenizer

    def submit(self, request: Request) -> Generation:
        """Hand a request to the engine; raises a SubmitError."""
        backend, _ = self.require_backend()
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        generation = Generation(request, self._mailbox, backend.engine.abort, self._forget)
        self._open[request.id] = generation
        try:
            backend.engine.submit(request, generation.sink)
        except BaseException:
            self._forget(request.id)
            raise
        return generation

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    @property
    def num_open(self) -> int:
        """Generations that have not ended yet."""
        return len(self._open)

    def check_engine(self) -> bool:
        """Whether the engine lives; when it has died, answer everything that waits for it."""
        if self.phase is Phase.DEAD:
            return False
        status = self.engine_status()
        if status is None or status.alive or self.stopped:
            return True
        self.phase, self.failure = Phase.DEAD, status.failure or "the engine thread ended"
        for generation in list(self._open.values()):
            generation.push(FailureEvent("engine_dead", "the engine has stopped"))
        return False
