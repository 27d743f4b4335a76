"""Engine: one thread that takes requests, runs steps and sends events.

A step is schedule, run, postprocess. Everything that belongs to one request (sampling, text, its
sink) may fail and ends that request only. When a whole forward fails, its sequences run again one
by one, so that the guilty one is found; a second step in which none succeeds is the engine's end.
Knows no HTTP and no metrics: it calls sinks and a recorder.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import torch

from engram_core.device import Device
from engram_core.errors import ConfigError, EngramError, MismatchError, StateError
from engram_core.prefetch import Prefetcher
from engram_core.version import MemoryVersion
from server.engine.admission import refuse_full, refuse_impossible
from server.engine.batch import Batch
from server.engine.block_pool import BlockPool
from server.engine.endings import Endings
from server.engine.graphs import SPARE_BLOCKS, GraphRunner, can_graph
from server.engine.inbox import Inbox
from server.engine.integrity import check_integrity
from server.engine.kv_cache import KVCache
from server.engine.kv_size import plan_blocks
from server.engine.limits import EngineLimits
from server.engine.memory_desk import MemoryDesk
from server.engine.memory_usage import MemoryFigures
from server.engine.postprocess import Postprocess
from server.engine.responder import Responder
from server.engine.runner import Runner
from server.engine.sampler import Sampler
from server.engine.scheduler import Scheduler
from server.engine.sequence import Sequence
from server.engine.served import fast_statistics, make_served, speed_up_memory
from server.engine.step_result import StepResult
from server.engine.tuning import Tuning
from server.engine.types import (
    EngineStatus,
    EventSink,
    FailureKind,
    Recorder,
    Request,
    StepStats,
)
from server.engine.vocabulary import Vocabulary

_log = logging.getLogger(__name__)

_DEFAULT_TUNING = Tuning()
_IDLE_S = 0.25  # how often an idle engine looks at deadlines and beats its heart
_JOIN_S = 5.0  # what a running step may still take when the engine is told to stop
_MAX_FAILED_STEPS = 2
_LATE: dict[FailureKind, str] = {
    "queue_timeout": "the request waited too long for its turn",
    "deadline": "the request took longer than its deadline",
}


class Engine:
    """Serves requests with one model on one thread.

    Args:
        model: a causal language model of transformers on its device; switched to our attention,
            its layers fused and its weights packed where that is possible.
        tokenizer: its tokenizer.
        version: the memory that requests read; None for the plain backbone. The caller attaches
            it to the model (`engram_core.splice.attach`) and keeps its own reference.
        prefetcher: needed with a version; the caller closes it after `stop`.
        limits: see `EngineLimits`.
        recorder: called on the engine thread.
        device: where the model runs; without it decode steps are never captured as graphs.
        tuning: how a forward is computed.

    Attributes:
        report: what the check at load found about the model.
        fused: which of its layers were fused.
        native: what compiled kernels compute.
        num_packed: its linear layers in the processor's own layout.
        tuning: as given.

    Raises:
        UnsupportedModelError: the model would be served silently wrong.
        ConfigError: limits and model contradict each other.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        version: MemoryVersion | None,
        prefetcher: Prefetcher | None,
        limits: EngineLimits,
        recorder: Recorder,
        *,
        device: Device | None = None,
        tuning: Tuning = _DEFAULT_TUNING,
    ) -> None:
        if version is not None and prefetcher is None:
            raise ConfigError("prefetcher is None; accepted: a Prefetcher, since there is a memory")
        model.eval()
        served = make_served(model, limits, tuning, device)
        self.report, self.fused = served.report, served.fused
        self.num_packed, self.native = served.num_packed, served.native
        num_blocks = plan_blocks(self.report.shapes, model.dtype, limits)
        spare = SPARE_BLOCKS if can_graph(device, tuning.graphs) else 0
        cache = KVCache(
            self.report.shapes, num_blocks + spare, limits.block_size, model.dtype, model.device
        )
        self._served = served
        if version is not None:
            speed_up_memory(served, version)
        vocabulary = Vocabulary.of(model, tokenizer)
        self.tuning = tuning
        self._limits, self._recorder, self._version = limits, recorder, version
        self._num_ids = vocabulary.num_ids
        self._inbox = Inbox()
        # a prefix is shared with the convolution's state behind it
        self._desk = MemoryDesk(prefetcher, limits.block_size if limits.prefix_cache else None)
        self._scheduler = Scheduler(limits, BlockPool(num_blocks, limits.block_size))
        runner = Runner(model, cache, limits, model.device)
        self._runner = GraphRunner(runner, limits, device, tuning.graphs, version)
        self._responder = Responder(tokenizer, vocabulary.eos_ids)
        self._endings = Endings(
            self._scheduler, cache, self._desk, self._inbox, self._responder, recorder
        )
        self._postprocess = Postprocess(
            Sampler(vocabulary.num_ids, fast_statistics(served)),
            self._responder,
            self._desk,
            self._endings,
            self._scheduler.prefix,
        )
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)
        self._stopping = False
        self._failure: str | None = None
        self._failed_steps = 0
        self._last_step_s = time.monotonic()

    # --- from any thread ---

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def submit(self, request: Request, sink: EventSink) -> None:
        """Queue a request; ``sink`` is called with its events on the engine thread.

        The lookups of the whole prompt start now, but for a prefix that is computed already.

        Raises:
            PromptTooLongError, QueueFullError, EngineClosedError: see there.
            SubmitError: an empty prompt, an unknown token, or an id that is in flight already.
        """
        pool = self._scheduler.pool
        refuse_impossible(request, self._limits, pool.capacity_tokens, self._num_ids)
        arrival_s = request.arrival_s or time.monotonic()
        text = self._responder.open_text(request)
        self._inbox.put(Sequence(request, sink, text, arrival_s), self._admit)

    def abort(self, request_id: str) -> None:
        """End a request within one step; it gets a FailureEvent. Unknown ids are ignored."""
        self._inbox.abort(request_id)

    def drain(self) -> None:
        """Refuse new requests from now on; those in flight go on."""
        self._inbox.close("the server is shutting down")

    def stop(self, timeout_s: float) -> None:
        """Drain, wait up to ``timeout_s`` for the requests in flight, then end them."""
        self.drain()
        if self._thread.is_alive():
            self._inbox.wait_until_empty(timeout_s)
        self._stopping = True
        self._inbox.wake()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        else:
            self._end_all("cancelled", "the server is shutting down")  # it never was started

    def status(self) -> EngineStatus:
        """A snapshot; cheap."""
        scheduler, inbox = self._scheduler, self._inbox
        return EngineStatus(
            alive=self._thread.is_alive() and self._failure is None,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + inbox.num_requests,
            waiting_tokens=scheduler.waiting.num_tokens + inbox.num_tokens,
            kv_blocks_used=scheduler.pool.num_used,
            kv_blocks_total=scheduler.pool.num_blocks,
            open_tickets=self._desk.open_tickets,
            last_step_s=self._last_step_s,
            failure=self._failure,
            kv_blocks_kept=scheduler.pool.num_idle,
            decode_path=self._runner.why_path,
        )

    @property
    def limits(self) -> EngineLimits:
        """As given."""
        return self._limits

    @property
    def runner(self) -> GraphRunner:
        """What computes its steps; for measurements, on an engine that was not started."""
        return self._runner

    def check_integrity(self) -> None:
        """Raise StateError when a KV block or a ticket has no owner. Only while idle."""
        with self._inbox.lock:
            check_integrity(self._scheduler, self._desk, self._inbox.num_requests)

    def swap_memory(self, version: MemoryVersion) -> MemoryVersion:
        """Let new requests read another memory, from any thread; running ones keep theirs.

        Args:
            version: on the model's device; it has the layers of the memory so far, in front of
                which the model was given its hooks.

        Returns:
            The memory so far, whose reference the caller gives back.

        Raises:
            StateError: the engine was made without a memory.
            MismatchError: the layers are others.
        """
        before = self._version
        if before is None:
            raise StateError("the engine serves no memory; accepted: one that was started with one")
        if set(version.layer_ids) != set(before.layer_ids):
            raise MismatchError("layers", expected=before.layer_ids, found=version.layer_ids)
        speed_up_memory(self._served, version)
        with self._inbox.lock:  # between two admissions
            self._version = version
        return before

    def _admit(self, sequence: Sequence) -> None:
        """Let a sequence in, or refuse it; runs under the inbox's lock."""
        waiting, inbox = self._scheduler.waiting, self._inbox
        refuse_full(
            sequence.num_tokens,
            len(waiting) + inbox.num_requests,
            waiting.num_tokens + inbox.num_tokens,
            self._limits,
        )
        if self._version is None:
            return
        sequence.version = self._version.acquire()
        try:
            self._desk.ask_prompt(sequence, self._scheduler.prefix.reach(sequence))
        except EngramError:
            sequence.version.release()
            raise

    # --- on the engine thread ---

    def _live(self) -> None:
        if self.native.num_layers:
            # what is left for torch is small; its threads would take the kernels' cores
            torch.set_num_threads(1)
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - those who wait must hear of it
            _log.critical("the engine thread died", exc_info=True)
            self._die(f"the engine stopped working ({type(error).__name__})")
            return
        self._end_all("cancelled", "the server is shutting down")

    def _turn(self) -> None:
        self._last_step_s = time.monotonic()
        self._take_in()
        batch = self._scheduler.schedule()
        if batch is not None:
            self._step(batch)
        else:
            self._record_left_over()
            self.check_integrity()
            self._inbox.wait(_IDLE_S)

    def _take_in(self) -> None:
        """New requests, aborts and deadlines."""
        aborted = set(self._inbox.take(self._scheduler.add))
        if aborted:
            for sequence in list(self._scheduler.sequences()):
                if sequence.id in aborted:
                    self._endings.fail(sequence, "cancelled", "the request was cancelled")
        for sequence, kind in self._scheduler.expired(time.monotonic()):
            self._endings.fail(sequence, kind, _LATE[kind])

    def _step(self, batch: Batch) -> None:
        """Run a scheduled batch and postprocess it."""
        started_s = time.monotonic()
        self._note_batch(batch, started_s)
        figures = [self._postprocess.apply(result) for result in self._run(batch)]
        duration_s = time.monotonic() - started_s
        self._scheduler.note(batch, duration_s)
        self._record(batch, figures, duration_s)
        if self._failed_steps >= _MAX_FAILED_STEPS:
            raise RuntimeError("a second step failed for every one of its sequences")

    def _note_batch(self, batch: Batch, now_s: float) -> None:
        for sequence in batch.preempted:
            with self._endings.guard(sequence):
                # what it must compute again, while it waits
                self._desk.ask_prompt(sequence, self._scheduler.prefix.reach(sequence))
        for span in batch.spans:
            if span.sequence.first_scheduled_s is None:
                span.sequence.first_scheduled_s = now_s

    def _run(self, batch: Batch) -> list[StepResult]:
        """The batch's forward; sequence by sequence when the whole of it fails."""
        try:
            results = [self._forward(batch)]
        except EngramError:
            _log.exception("the memory failed a step")
            return self._run_each(batch)
        except Exception:  # noqa: BLE001 - which of the sequences it belongs to shows next
            _log.exception("a step failed")
            results = self._run_each(batch)
            self._failed_steps += 1
        if results:
            self._failed_steps = 0
        return results

    def _run_each(self, batch: Batch) -> list[StepResult]:
        results: list[StepResult] = []
        for span in batch.spans:
            self._desk.release(span.sequence)  # rows shared with the guilty one would fail again
            with self._endings.guard(span.sequence):
                results.append(self._forward(batch.alone(span)))
        return results

    def _forward(self, batch: Batch) -> StepResult:
        memory = self._desk.build_step(batch)
        output = self._runner.run(batch, memory.engram if memory is not None else None)
        if memory is not None:
            memory.commit(batch)
        self._scheduler.commit(batch)
        return StepResult(batch, output, memory)

    def _record(self, batch: Batch, figures: list[MemoryFigures], duration_s: float) -> None:
        lookups = [stats for each in figures for stats in each.lookups]
        queried_tokens, hit_tokens = self._scheduler.prefix.drain_counts()
        stats = StepStats(
            prefill_tokens=batch.num_tokens - batch.num_decodes,
            decode_tokens=batch.num_decodes,
            batch_size=len(batch.spans),
            duration_s=duration_s,
            preemptions=len(batch.preempted),
            lookups=(*lookups, *self._desk.drain_left_over()),
            waits=tuple(stats for each in figures for stats in each.waits),
            prefix_queried_tokens=queried_tokens,
            prefix_hit_tokens=hit_tokens,
            audited=self._desk.drain_audit(),
        )
        try:
            self._recorder.record_step(stats)
        except Exception:  # noqa: BLE001 - a figure less is no reason to stop serving
            _log.exception("a step could not be recorded")

    def _record_left_over(self) -> None:
        """Count the lookups of requests that ended between two steps, when no step follows."""
        left = self._desk.drain_left_over()
        if not left:
            return
        try:
            self._recorder.record_lookups(left)
        except Exception:  # noqa: BLE001 - as for a step
            _log.exception("lookups could not be recorded")

    def _die(self, failure: str) -> None:
        self._failure = failure
        self._inbox.close(failure)
        self._end_all("engine_dead", failure)

    def _end_all(self, kind: FailureKind, message: str) -> None:
        """End every sequence, those not taken in yet included."""
        self._inbox.close(message)
        self._inbox.take(self._scheduler.add)
        for sequence in list(self._scheduler.sequences()):
            self._endings.fail(sequence, kind, message)
