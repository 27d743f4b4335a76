"""Postprocess: from a step's logits to tokens, events and endings.

The next step's rows are asked for as soon as its tokens are known, before any text is made. An
exception that belongs to one sequence ends that sequence only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Many
from dataclasses import replace

from torch import Tensor

from server.engine.batch import Span
from server.engine.endings import FAILED, Endings
from server.engine.memory_desk import MemoryDesk
from server.engine.memory_usage import Gates, MemoryFigures, account, token_memory
from server.engine.prefix_cache import PrefixCache
from server.engine.responder import Responder
from server.engine.sampler import Choice, Sampler, token_logprobs
from server.engine.sequence import Sequence
from server.engine.step_result import StepResult
from server.engine.types import TokenMemory

_log = logging.getLogger(__name__)


class Postprocess:
    """What happens after a forward."""

    def __init__(
        self,
        sampler: Sampler,
        responder: Responder,
        desk: MemoryDesk,
        endings: Endings,
        prefix: PrefixCache,
    ) -> None:
        self._sampler = sampler
        self._responder = responder
        self._desk = desk
        self._endings = endings
        self._prefix = prefix

    def apply(self, result: StepResult) -> MemoryFigures:
        """Choose tokens, send events; returns what the memory's lookups and waits were."""
        figures = MemoryFigures()
        if result.memory is not None:
            figures = account(result.batch, result.memory)
        for span, logits in result.prompt_logits():
            with self._endings.guard(span.sequence):
                self._judge_prompt(span, logits)
        chosen = self._choose(result)
        # before new rows are asked for: that lets go of the ones told about here
        told = [self._token_memory(result, index, figures.gates) for index, _ in chosen]
        for index, choice in chosen:
            result.batch.spans[index].sequence.token_ids.append(choice.token_id)
        self._ask_next([result.batch.spans[index].sequence for index, _ in chosen])
        for (index, choice), memory in zip(chosen, told, strict=True):
            sequence = result.batch.spans[index].sequence
            with self._endings.guard(sequence):
                self._emit(sequence, choice, memory)
        return figures

    def _judge_prompt(self, span: Span, logits: Tensor) -> None:
        """Log-probabilities of the prompt tokens that this span's positions predict."""
        sequence = span.sequence
        judged = sequence.prompt_logprobs
        prompt = sequence.request.prompt_token_ids
        if not judged:
            judged.append(self._responder.token(prompt[0], None))
        # a recomputed prompt was judged already, as far as it came
        first, stop = max(span.start, len(judged) - 1), min(span.stop, len(prompt) - 1)
        if first < stop:
            following = list(prompt[first + 1 : stop + 1])
            values = token_logprobs(logits[first - span.start : stop - span.start], following)
            pairs = zip(following, values, strict=True)
            judged += [self._responder.token(token_id, value) for token_id, value in pairs]

    def _choose(self, result: StepResult) -> list[tuple[int, Choice]]:
        """A choice for each span that goes on; the others have ended."""
        indices, logits = result.sampling()
        if not indices:
            return []
        sequences = [result.batch.spans[index].sequence for index in indices]
        choices = self._sample(logits, sequences)
        chosen: list[tuple[int, Choice]] = []
        for index, sequence, choice in zip(indices, sequences, choices, strict=True):
            if choice is None:
                self._endings.fail(sequence, "generation", FAILED)
                continue
            if sequence.is_ended:
                continue
            self._prefix.keep(sequence)  # its rows are finite, and it may end in a moment
            if sequence.request.sampling.max_new_tokens == 0:
                self._endings.finish(sequence, "length")
            else:
                chosen.append((index, choice))
        return chosen

    def _sample(self, logits: Tensor, sequences: Many[Sequence]) -> list[Choice | None]:
        try:
            return self._sampler.sample(logits, sequences)
        except Exception:  # noqa: BLE001 - one by one, the guilty row shows itself
            rows = enumerate(sequences)
            return [self._sample_alone(logits[row : row + 1], each) for row, each in rows]

    def _sample_alone(self, logits: Tensor, sequence: Sequence) -> Choice | None:
        with self._endings.guard(sequence):
            return self._sampler.sample(logits, [sequence])[0]
        return None

    def _ask_next(self, sequences: Many[Sequence]) -> None:
        going_on = [each for each in sequences if self._responder.ends_by_token(each) is None]
        if not going_on:
            return
        try:
            self._desk.ask_step(going_on)
        except Exception:  # noqa: BLE001 - the next step asks again, for one sequence at a time
            _log.exception("the next step's rows could not be asked for")

    def _emit(self, sequence: Sequence, choice: Choice, memory: tuple[TokenMemory, ...]) -> None:
        _note_time(sequence, time.monotonic())
        event = self._responder.token_event(sequence, choice, memory)
        reason = self._responder.ends_by_token(sequence)
        if sequence.text.is_stopped:
            reason = "stop_sequence"
        sequence.sink(event if reason is None else replace(event, last=True))
        if reason is not None:
            self._endings.finish(sequence, reason)

    def _token_memory(
        self, result: StepResult, index: int, gates: Gates
    ) -> tuple[TokenMemory, ...]:
        span, memory = result.batch.spans[index], result.memory
        rows = memory.spans[index] if memory is not None else None
        if rows is None or not span.sequence.request.engram.per_token:
            return ()
        return token_memory(span, rows, result.last_row(index), gates, self._responder.decode)


def _note_time(sequence: Sequence, now_s: float) -> None:
    if sequence.last_token_s is None:
        sequence.first_token_s = now_s
    else:
        sequence.inter_token_s.append(now_s - sequence.last_token_s)
    sequence.last_token_s = now_s
