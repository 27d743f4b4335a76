"""Endings: how a sequence leaves the engine.

The one place where everything that a sequence holds is given back: KV blocks, memory rows, the
memory version, its place among the requests in flight. Its last event is sent here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engram_core.errors import TierError
from server.engine.inbox import Inbox
from server.engine.kv_cache import KVCache
from server.engine.memory_desk import MemoryDesk
from server.engine.responder import Responder, timings
from server.engine.scheduler import Scheduler
from server.engine.sequence import Sequence
from server.engine.types import (
    Event,
    FailureEvent,
    FailureKind,
    FinishReason,
    Recorder,
    RequestStats,
)

_log = logging.getLogger(__name__)
NO_ROWS = "the memory's rows could not be read and the request was stopped; try again later"
FAILED = "the generation failed; the request was stopped"


class Endings:
    """Finishes and fails sequences; each leaves once."""

    def __init__(
        self,
        scheduler: Scheduler,
        cache: KVCache,
        desk: MemoryDesk,
        inbox: Inbox,
        responder: Responder,
        recorder: Recorder,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._desk = desk
        self._inbox = inbox
        self._responder = responder
        self._recorder = recorder

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence that succeeded."""
        now_s = time.monotonic()
        event = self._responder.finish_event(sequence, reason, now_s)
        self._leave(sequence, event, reason, now_s)

    def fail(self, sequence: Sequence, kind: FailureKind, message: str) -> None:
        """End a sequence that failed; ``message`` goes to the client."""
        event = FailureEvent(kind, message)
        self._leave(sequence, event, kind, time.monotonic())

    @contextmanager
    def guard(self, sequence: Sequence) -> Iterator[None]:
        """Let an exception of the body end this sequence only."""
        try:
            yield
        except TierError as error:
            _log.error("request %s has no rows: %s", sequence.id, error)
            self.fail(sequence, "generation", NO_ROWS)
        except Exception:  # noqa: BLE001 - whatever it is, it belongs to this request
            _log.exception("request %s failed", sequence.id)
            self.fail(sequence, "generation", FAILED)

    def _leave(self, sequence: Sequence, event: Event, outcome: str, now_s: float) -> None:
        if sequence.is_ended:
            return
        sequence.is_ended = True
        is_spoiled = outcome == "generation"
        unheld = self._scheduler.remove(sequence, is_spoiled=is_spoiled)
        if is_spoiled:
            self._cache.clear(unheld)  # NaN in a masked place would still reach the next owner
        self._desk.release(sequence)
        if sequence.version is not None:
            sequence.version.release()
        self._inbox.forget(sequence.id)
        stats = _stats(sequence, event, outcome, now_s)
        _report(sequence, lambda: self._recorder.record_request(stats))
        _report(sequence, lambda: sequence.sink(event))


def _report(sequence: Sequence, tell: Callable[[], None]) -> None:
    try:
        tell()
    except Exception:  # noqa: BLE001 - the sequence is gone; nobody is left who could be told
        _log.exception("the end of request %s could not be reported", sequence.id)


def _stats(sequence: Sequence, event: Event, outcome: str, now_s: float) -> RequestStats:
    spent = timings(sequence, now_s)
    first_s = sequence.first_token_s
    return RequestStats(
        outcome=outcome,
        failed=isinstance(event, FailureEvent),
        prompt_tokens=sequence.num_prompt_tokens,
        generated_tokens=sequence.num_generated,
        queue_s=spent.queue_s,
        prefill_s=spent.prefill_s,
        decode_s=spent.decode_s,
        time_to_first_token_s=None if first_s is None else first_s - sequence.arrival_s,
        inter_token_s=tuple(sequence.inter_token_s),
    )
