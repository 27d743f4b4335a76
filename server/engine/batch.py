"""Batch: what one step computes, as decided by the scheduler. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from server.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Span:
    """The next ``num_tokens`` uncomputed tokens of one sequence."""

    sequence: Sequence
    start: int  # absolute position of the first token
    num_tokens: int

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        """Whether the span reaches the end of the history, so that a token follows."""
        return self.stop == self.sequence.num_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether every position's logits are wanted, to judge the prompt's tokens."""
        sequence = self.sequence
        wanted = sequence.request.sampling.prompt_logprobs
        return wanted and self.start < sequence.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """Spans of one memory version: decoding ones first, then (chunks of) prefills.

    Attributes:
        spans: what is computed.
        num_decodes: how many of the first spans are one generated token each.
        preempted: sequences that lost their place for this batch.
    """

    spans: tuple[Span, ...]
    num_decodes: int
    preempted: tuple[Sequence, ...] = ()

    @property
    def version(self) -> Any:
        """The memory version that all sequences of the batch hold."""
        return self.spans[0].sequence.version

    @property
    def decodes(self) -> tuple[Span, ...]:
        """The spans of one token over a computed history."""
        return self.spans[: self.num_decodes]

    @property
    def prefills(self) -> tuple[Span, ...]:
        """The other spans."""
        return self.spans[self.num_decodes :]

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(span.num_tokens for span in self.spans)

    def alone(self, span: Span) -> Batch:
        """A batch of one of these spans only, to find out which one breaks a step."""
        return Batch((span,), int(any(span is each for each in self.decodes)))
