"""Generates with a started engine and keeps every token with its log-probability and time."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from itertools import count

from benchmarks.run_times import RunTimes
from server.engine.engine import Engine
from server.engine.types import (
    Event,
    FailureEvent,
    Request,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
)

Arrivals = queue.SimpleQueue[tuple[int, float, Event]]
_ids = count()


class EngineRun:
    """One greedy run of several prompts side by side.

    Attributes:
        tokens: per prompt, what was generated. times: when.

    Raises:
        RuntimeError: the engine failed a request.
    """

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self.tokens: list[list[TokenLogprob]] = [[] for _ in prompts]
        token_times_s: list[list[float]] = [[] for _ in prompts]
        arrived: Arrivals = queue.SimpleQueue()
        start_s = time.perf_counter()
        for number, prompt in enumerate(prompts):
            _submit(engine, arrived, number, prompt, new_tokens)
        running = len(prompts)
        while running:
            number, now_s, event = arrived.get()
            if isinstance(event, FailureEvent):
                raise RuntimeError(f"the engine failed a request: {event.message}")
            if isinstance(event, TokenEvent):
                self.tokens[number].append(event.token)
                token_times_s[number].append(now_s)
            else:
                running -= 1
        ids = [[token.id for token in each] for each in self.tokens]
        self.times = RunTimes(start_s, token_times_s, ids)


def _submit(
    engine: Engine, arrived: Arrivals, number: int, prompt: Sequence[int], new_tokens: int
) -> None:
    sampling = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    request = Request(f"run-{next(_ids)}", tuple(prompt), sampling, arrival_s=time.monotonic())
    engine.submit(request, lambda event: arrived.put((number, time.perf_counter(), event)))
