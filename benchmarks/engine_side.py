"""The serving engine as a side of the comparison, driven without HTTP."""

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
)


class EngineSide:
    """Submits prompts to a started engine and waits for the last answer."""

    name = "engine"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = count()

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt.

        Raises:
            RuntimeError: the engine failed a request.
        """
        arrived: queue.SimpleQueue[tuple[int, float, Event]] = queue.SimpleQueue()
        start_s = time.perf_counter()
        for number, prompt in enumerate(prompts):
            self._submit(arrived, number, prompt, new_tokens)
        return _collect(arrived, start_s, len(prompts))

    def _submit(
        self,
        arrived: queue.SimpleQueue[tuple[int, float, Event]],
        number: int,
        prompt: Sequence[int],
        new_tokens: int,
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


def _collect(
    arrived: queue.SimpleQueue[tuple[int, float, Event]], start_s: float, num_sequences: int
) -> RunTimes:
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
