"""TeacherForcing: what a served model finds likeliest at each position of a given text.

The engine's runner computes the given tokens as the engine would, in chunks of a prompt or one
token a step, without anything being sampled. Needs an engine that was not started: its KV blocks
belong to nobody then.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Literal

from server.engine.batch import Batch, Span
from server.engine.engine import Engine
from server.engine.sequence import Sequence
from server.engine.types import Event, Request, SamplingParams

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")


class TeacherForcing:
    """Reads texts with one engine.

    Args:
        engine: not started, its model without a memory.
        num_ids: tokens from this one on (padding of the vocabulary) are never likeliest.
    """

    def __init__(self, engine: Engine, num_ids: int) -> None:
        self._runner, self._limits = engine.runner, engine.limits
        self._num_ids = num_ids

    def likeliest(self, token_ids: Many[int], phase: Phase) -> list[int]:
        """The likeliest next token behind each of the tokens, given all of them up to there.

        Args:
            token_ids: of one text, as many as fit into the engine's longest sequence.
            phase: ``"prefill"`` computes chunks of the engine's largest step, ``"decode"`` one
                token a step, each alone.
        """
        step = self._limits.max_num_batched_tokens if phase == "prefill" else 1
        sequence = self._sequence(token_ids)
        found: list[int] = []
        for start in range(0, len(token_ids), step):
            span = Span(sequence, start, min(step, len(token_ids) - start))
            output = self._runner.run(Batch((span,), int(phase == "decode")))
            found += output.logits[:, : self._num_ids].argmax(-1).tolist()
            sequence.num_computed = span.stop
        return found

    def _sequence(self, token_ids: Many[int]) -> Sequence:
        """A sequence with blocks of its own whose every position's logits are wanted."""
        sampling = SamplingParams(prompt_logprobs=True)
        sequence = Sequence(Request("text", tuple(token_ids), sampling), _drop)
        sequence.block_table = list(range(-(-len(token_ids) // self._limits.block_size)))
        return sequence


def _drop(event: Event) -> None:
    """Nothing is generated, so nobody listens."""
