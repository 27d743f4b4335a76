"""An engine without a model: same interface, own thread, tokens from a script.

Honours batching limits, aborts, deadlines, draining and stopping as the real engine promises to;
can be slowed, made to fail, hung or killed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engram_core.stats import LookupStats, WaitStats
from server.engine.types import (
    EngineClosedError,
    EngineStatus,
    Event,
    EventSink,
    FailureEvent,
    FinishEvent,
    LayerUsage,
    PromptTooLongError,
    QueueFullError,
    Recorder,
    Request,
    RequestStats,
    StepStats,
    Timings,
    TokenEvent,
    TokenLogprob,
    TokenMemory,
)

EOS = TokenLogprob(0, "<eos>", -0.25, special=True)


def words(request: Request, index: int) -> str:
    """The default script: `` w1``, `` w2``, ..."""
    return f" w{index}"


@dataclass
class Script:
    """What the fake does; may be changed while it runs."""

    text: Callable[[Request, int], str] = words  # the text of the index-th token, from 1
    step_s: float = 0.0
    eos_after: int | None = None
    fail_at: int | None = None  # the request fails at this token
    hang: threading.Event = field(default_factory=threading.Event)  # set: steps stand still
    die: threading.Event = field(default_factory=threading.Event)  # set: the thread ends
    die_silently: bool = False
    logprob: float = -0.5


@dataclass
class Job:
    request: Request
    sink: EventSink
    started_s: float | None = None
    text: str = ""
    shown: str = ""
    count: int = 0
    times_s: list[float] = field(default_factory=list)


class FakeEngine:
    def __init__(
        self,
        script: Script | None = None,
        recorder: Recorder | None = None,
        *,
        max_num_seqs: int = 16,
        max_queue_len: int = 128,
        max_model_len: int = 2048,
        has_memory: bool = True,
    ) -> None:
        self.script, self.recorder = script or Script(), recorder
        self.max_num_seqs, self.max_queue_len = max_num_seqs, max_queue_len
        self.max_model_len, self.has_memory = max_model_len, has_memory
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.submitted: list[Request] = []
        self.aborted: list[str] = []
        self.max_waiting_seen = 0
        self._lock = threading.Condition()
        self._closed = self._stopping = False
        self._failure: str | None = None
        self._beat_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)

    # the interface

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request, sink: EventSink) -> None:
        with self._lock:
            if self._closed or self._failure or self._stopping:
                raise EngineClosedError("closed")
            if len(request.prompt_token_ids) + request.sampling.max_new_tokens > self.max_model_len:
                raise PromptTooLongError("too long: 1 and 2")
            if len(self.waiting) >= self.max_queue_len:
                raise QueueFullError("full")
            self.submitted.append(request)
            self.waiting.append(Job(request, sink))
            self._admit()
            self.max_waiting_seen = max(self.max_waiting_seen, len(self.waiting))
            self._lock.notify_all()

    def abort(self, request_id: str) -> None:
        with self._lock:
            for group in (self.waiting, self.running):
                for job in [j for j in group if j.request.id == request_id]:
                    group.remove(job)
                    self.aborted.append(request_id)

    def drain(self) -> None:
        self._closed = True

    def stop(self, timeout_s: float) -> None:
        with self._lock:
            self._closed = self._stopping = True
            self._lock.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def status(self) -> EngineStatus:
        with self._lock:
            return EngineStatus(
                alive=self._failure is None and (self._thread.is_alive() or not self._thread.ident),
                running=len(self.running),
                waiting=len(self.waiting),
                waiting_tokens=sum(len(j.request.prompt_token_ids) for j in self.waiting),
                kv_blocks_used=len(self.running),
                kv_blocks_total=self.max_num_seqs,
                open_tickets=len(self.running),
                last_step_s=self._beat_s,
                failure=self._failure,
            )

    # the thread

    def _run(self) -> None:
        while not self._stopping:
            if self.script.die.is_set():
                self._die()
                return
            if self.script.hang.is_set():
                time.sleep(0.005)
                continue
            with self._lock:
                self._beat_s = time.monotonic()
                self._drop_late()
                self._admit()
                if not self.running:
                    self._lock.wait(0.01)
                    continue
                batch = list(self.running)
            self._step(batch)
        with self._lock:
            for job in [*self.running, *self.waiting]:
                job.sink(FailureEvent("cancelled", "the server is shutting down"))
            self.running.clear()
            self.waiting.clear()

    def _die(self) -> None:
        self._failure = "the script said so"
        if not self.script.die_silently:
            for job in [*self.running, *self.waiting]:
                job.sink(FailureEvent("engine_dead", "the engine has stopped"))

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_num_seqs:
            job = self.waiting.popleft()
            job.started_s = time.monotonic()
            self.running.append(job)

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        for job in list(self.waiting):
            limit = job.request.queue_deadline_s
            if limit is not None and now_s > limit:
                self.waiting.remove(job)
                job.sink(FailureEvent("queue_timeout", "the request waited too long"))
        for job in list(self.running):
            limit = job.request.deadline_s
            if limit is not None and now_s > limit:
                self.running.remove(job)
                job.sink(FailureEvent("deadline", "the request took too long"))

    def _step(self, batch: list[Job]) -> None:
        start_s = time.monotonic()
        if self.script.step_s:
            time.sleep(self.script.step_s)
        for job in batch:
            if job in self.running:
                for event in self._advance(job):
                    job.sink(event)
        if self.recorder is not None:
            self.recorder.record_step(self._step_stats(batch, time.monotonic() - start_s))

    def _advance(self, job: Job) -> list[Event]:
        job.count += 1
        job.times_s.append(time.monotonic())
        params = job.request.sampling
        if job.count == self.script.fail_at:
            self._leave(job)
            return [FailureEvent("generation", "the model produced no finite numbers")]
        eos = self.script.eos_after
        if eos is not None and job.count > eos and not params.ignore_eos:
            return self._finish(job, EOS, "eos_token")
        piece = self.script.text(job.request, job.count)
        job.text += piece
        token = TokenLogprob(1000 + job.count, piece, self.script.logprob)
        if any(stop in job.text for stop in params.stop):
            return self._finish(job, token, "stop_sequence")
        if job.count >= params.max_new_tokens:
            return self._finish(job, token, "length")
        return [self._token(job, token, self._show(job, self._held_back(job)))]

    def _held_back(self, job: Job) -> str:
        """The longest end of the text that may become a stop string."""
        ends = [
            stop[:size]
            for stop in job.request.sampling.stop
            for size in range(1, len(stop))
            if job.text.endswith(stop[:size])
        ]
        return max(ends, key=len, default="")

    def _show(self, job: Job, held: str) -> str:
        visible = job.text[: len(job.text) - len(held)]
        delta, job.shown = visible[len(job.shown) :], visible
        return delta

    def _token(self, job: Job, token: TokenLogprob, delta: str, last: bool = False) -> TokenEvent:
        params = job.request.sampling
        top = [TokenLogprob(n, f"t{n}", -1.0 - n) for n in range(params.top_n_tokens)]
        memory = [TokenMemory(1, 0.25, " a b", (3, 4), ("host", "host"))]
        return TokenEvent(
            index=job.count,
            token=token,
            text_delta=delta,
            top_tokens=tuple(top),
            memory=tuple(memory if job.request.engram.per_token else ()),
            last=last,
        )

    def _finish(self, job: Job, token: TokenLogprob, reason: str) -> list[Event]:
        self._leave(job)
        params = job.request.sampling
        if reason == "stop_sequence":
            ends = [(job.text.find(s), s) for s in params.stop if s in job.text]
            at, stop = min(ends)
            job.text = job.text[: at + len(stop) if params.include_stop_str_in_output else at]
        delta = self._show(job, "")
        prompt = [
            TokenLogprob(i, f"p{i}", -1.0 if n else None)
            for n, i in enumerate(job.request.prompt_token_ids)
        ]
        now_s = time.monotonic()
        started_s = job.started_s or now_s
        timings = Timings(started_s - job.request.arrival_s, 0.001, now_s - started_s)
        self._report(job, reason, timings)
        usage = LayerUsage(1, 0.002, 0.001, 10 * job.count, 5 * job.count, {"host": 10}, 1.0, 4)
        return [
            self._token(job, token, delta, last=True),
            FinishEvent(
                finish_reason=reason,
                text=job.text,
                text_tail="",
                prompt_tokens=len(job.request.prompt_token_ids),
                generated_tokens=job.count,
                seed=params.seed if params.do_sample else None,
                timings=timings,
                prefill=tuple(prompt if params.prompt_logprobs else ()),
                engram=(usage,) if job.request.engram.enabled else (),
            ),
        ]

    def _leave(self, job: Job) -> None:
        with self._lock:
            if job in self.running:
                self.running.remove(job)

    def _report(self, job: Job, reason: str, timings: Timings) -> None:
        if self.recorder is None:
            return
        gaps = [b - a for a, b in zip(job.times_s, job.times_s[1:], strict=False)]
        self.recorder.record_request(
            RequestStats(
                outcome=reason,
                failed=False,
                prompt_tokens=len(job.request.prompt_token_ids),
                generated_tokens=job.count,
                queue_s=timings.queue_s,
                prefill_s=timings.prefill_s,
                decode_s=timings.decode_s,
                time_to_first_token_s=job.times_s[0] - job.request.arrival_s,
                inter_token_s=tuple(gaps),
            )
        )

    def _step_stats(self, batch: list[Job], duration_s: float) -> StepStats:
        lookup = LookupStats(
            layer=1,
            phase="decode",
            outcome="hidden",
            duration_s=0.0004,
            hash_s=0.0001,
            rows=16,
            unique_rows=12,
            rows_by_order={2: 8, 3: 8},
            rows_by_tier={"host": 16},
            duration_by_tier_s={"host": 0.0003},
        )
        return StepStats(
            prefill_tokens=0,
            decode_tokens=len(batch),
            batch_size=len(batch),
            duration_s=duration_s,
            preemptions=0,
            lookups=(lookup,),
            waits=(WaitStats(1, "decode", 0.0), WaitStats(1, "prefill", 0.001)),
        )
