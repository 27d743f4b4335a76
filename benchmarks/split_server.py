"""The server with its engine in a process of its own: only for measuring what that would bring.

Same HTTP side, same engine; between them a pipe that carries pickled requests and events. What a
real one would also need (a supervised child, refusals, metrics, aborts at death) is left out, so
its figures are the best that such a server could reach.
"""

from __future__ import annotations

import multiprocessing
import queue
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from transformers import AutoTokenizer

from benchmarks.passing_thread import in_passing_thread
from server.backend import load_backend
from server.config import Settings
from server.default_model import resolve_default_model
from server.engine.types import EngineStatus, Event, EventSink, NullRecorder, Request
from server.metrics import Metrics
from server.process import run
from server.runtime import Backend, Progress

STOP_TIMEOUT_S = 10.0
Outbox = queue.SimpleQueue[tuple[str, Event]]


class PipedEngine:
    """The engine as the HTTP process sees it: requests go into a pipe, events come out."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sinks: dict[str, EventSink] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Start reading events."""
        self._reader.start()

    def submit(self, request: Request, sink: EventSink) -> None:
        """Send a request."""
        self._sinks[request.id] = sink
        self._pipe.send(request)

    def abort(self, request_id: str) -> None:
        """Send an abort."""
        self._pipe.send(request_id)

    def drain(self) -> None:
        """Nothing to do before `stop`."""

    def stop(self, timeout_s: float) -> None:
        """End the engine's process."""
        self._pipe.send(None)
        self._reader.join(STOP_TIMEOUT_S)

    def status(self) -> EngineStatus:
        """As if it were well."""
        return EngineStatus(True, len(self._sinks), 0, 0, 0, 1, 0, time.monotonic())

    def _read(self) -> None:
        while (events := self._pipe.recv()) is not None:
            for request_id, event in events:
                self._sinks[request_id](event)


def engine_process(pipe: Connection, given: dict[str, Any]) -> None:
    """The engine's side: runs until it reads None."""
    backend = in_passing_thread(lambda: load_backend(Settings(**given), NullRecorder(), _ignore))
    backend.engine.start()
    outbox: Outbox = queue.SimpleQueue()
    threading.Thread(target=_write, args=(pipe, outbox), daemon=True).start()
    facts = ("max_model_len", "device", "dtype", "has_memory", "memory_id")
    pipe.send({name: getattr(backend, name) for name in facts})
    while (order := pipe.recv()) is not None:
        if isinstance(order, Request):
            backend.engine.submit(order, _sink(outbox, order.id))
        else:
            backend.engine.abort(order)
    backend.engine.stop(0.0)
    backend.close()
    pipe.send(None)


def _sink(outbox: Outbox, request_id: str) -> Callable[[Event], None]:
    return lambda event: outbox.put((request_id, event))


def _write(pipe: Connection, outbox: Outbox) -> None:
    """Send what is there, all of it in one message."""
    while True:
        events = [outbox.get()]
        while not outbox.empty():
            events.append(outbox.get())
        pipe.send(events)


def load(settings: Settings, metrics: Metrics, progress: Progress) -> Backend:
    """Start the engine's process; the HTTP side keeps only the tokenizer."""
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    given = settings.model_dump(exclude_unset=True)
    process = context.Process(target=engine_process, args=(other_end, given), daemon=True)
    process.start()
    facts = pipe.recv()
    folder = settings.model or resolve_default_model()
    return Backend(
        engine=PipedEngine(pipe), tokenizer=AutoTokenizer.from_pretrained(folder), **facts
    )


def _ignore(_phase: str, _fraction: float) -> None:
    """Loading is not measured here."""


def main() -> int:
    """`python -m benchmarks.split_server serve [MODEL] --host H --port P ...`, as the server's."""
    from server.cli import build_parser, read_settings  # noqa: PLC0415 - the parent's alone

    given = vars(build_parser().parse_args(sys.argv[1:]))
    given.pop("command")
    settings = read_settings(given)
    return 2 if settings is None else run(settings, load)


if __name__ == "__main__":
    sys.exit(main())
