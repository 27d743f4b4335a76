"""This server's engine without HTTP: the backend of `engram-server serve`, driven from a thread."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from benchmarks.run_times import RunTimes
from server.backend import load_backend
from server.config import Settings
from server.engine.types import (
    Event,
    FailureEvent,
    NullRecorder,
    Request,
    SamplingParams,
    TokenEvent,
)
from server.runtime import EnginePort

STOP_TIMEOUT_S = 10.0
Arrivals = queue.SimpleQueue[tuple[int, float, Event]]


class EngineContender:
    """Submits prompts to a started engine and waits for the last answer."""

    def __init__(
        self,
        engine: EnginePort,
        *,
        name: str = "engine",
        bits: str = "bf16",
        has_memory: bool = True,
    ) -> None:
        self.name, self.bits, self.has_memory = name, bits, has_memory
        self._engine = engine
        self._ids = count()

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt.

        Raises:
            RuntimeError: the engine failed a request.
        """
        arrived: Arrivals = queue.SimpleQueue()
        start_s = time.perf_counter()
        for number, prompt in enumerate(prompts):
            self._submit(arrived, number, prompt, new_tokens)
        return _collect(arrived, start_s, len(prompts))

    def _submit(
        self, arrived: Arrivals, number: int, prompt: Sequence[int], new_tokens: int
    ) -> None:
        request = Request(
            id=f"bench-{next(self._ids)}",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_new_tokens=new_tokens, ignore_eos=True),
            arrival_s=time.monotonic(),
        )
        self._engine.submit(
            request, lambda event: arrived.put((number, time.perf_counter(), event))
        )


@contextmanager
def open_engine(settings: Settings, name: str, bits: str) -> Iterator[EngineContender]:
    """The engine that a server with these settings would run."""
    backend = load_backend(settings, NullRecorder(), lambda _phase, _fraction: None)
    backend.engine.start()
    try:
        yield EngineContender(backend.engine, name=name, bits=bits, has_memory=backend.has_memory)
    finally:
        backend.engine.stop(STOP_TIMEOUT_S)
        backend.close()


def _collect(arrived: Arrivals, start_s: float, num_sequences: int) -> RunTimes:
    times_s: list[list[float]] = [[] for _ in range(num_sequences)]
    token_ids: list[list[int]] = [[] for _ in range(num_sequences)]
    running = num_sequences
    while running:
        number, now_s, event = arrived.get()
        if isinstance(event, FailureEvent):
            raise RuntimeError(f"the engine failed a request: {event.message}")
        if isinstance(event, TokenEvent):
            times_s[number].append(now_s)
            token_ids[number].append(event.token.id)
        else:
            running -= 1
    return RunTimes(start_s, times_s, token_ids)
