"""StepResult: a batch that went through the model, with what came out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from server.engine.batch import Batch, Span
from server.engine.memory_desk import MemoryStep
from server.engine.runner import StepOutput


@dataclass(frozen=True, slots=True)
class StepResult:
    """One forward: its batch, its logits and its memory."""

    batch: Batch
    output: StepOutput
    memory: MemoryStep | None

    def sampling(self) -> tuple[list[int], Tensor]:
        """Indices of the spans that a token follows, and their rows of logits [n, vocabulary]."""
        logits, rows = self.output.logits, self.output.rows
        indices = [index for index, span in enumerate(self.batch.spans) if span.samples]
        if len(indices) == logits.shape[0]:
            return indices, logits  # the usual step: every row chooses a token
        return indices, logits[[rows[index].stop - 1 for index in indices]]

    def prompt_logits(self) -> list[tuple[Span, Tensor]]:
        """Spans whose prompt tokens are to be judged, with the logits of all their positions."""
        pairs = zip(self.batch.spans, self.output.rows, strict=True)
        return [
            (span, self.output.logits[rows]) for span, rows in pairs if span.wants_prompt_logprobs
        ]

    def last_row(self, index: int) -> int:
        """The packed row of a span's last token."""
        return sum(span.num_tokens for span in self.batch.spans[: index + 1]) - 1
