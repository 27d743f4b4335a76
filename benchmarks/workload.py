"""What both sides of a comparison are given: the same prompts, cut from the same text."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table.

    Attributes:
        name: how the table calls it.
        num_seqs: sequences side by side.
        prompt_tokens: length of each prompt.
        new_tokens: tokens generated for each; 1 measures prefill alone.
    """

    name: str
    num_seqs: int
    prompt_tokens: int
    new_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and answer of one sequence."""
        return self.prompt_tokens + self.new_tokens

    @property
    def measures_prefill(self) -> bool:
        """Whether the rate is prompt tokens per second instead of generated ones."""
        return self.new_tokens == 1

    def prompts(self, token_ids: Sequence[int], offset: int = 0) -> list[list[int]]:
        """Prompts that share no token: consecutive windows of a text's ids, from `offset` on.

        Raises ValueError when the text is too short.
        """
        needed = offset + self.num_seqs * self.prompt_tokens
        if needed > len(token_ids):
            raise ValueError(f"{self.name} needs {needed} tokens, the text has {len(token_ids)}")
        starts = range(offset, needed, self.prompt_tokens)
        return [list(token_ids[start : start + self.prompt_tokens]) for start in starts]


def reference_text() -> str:
    """English text that every Python carries: the topics of its interactive help."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def workloads(context: int, new_tokens: int, prefill_tokens: int) -> list[Workload]:
    """The rows of the published table."""
    decode = [Workload(f"decode x{n}", n, context, new_tokens) for n in (1, 8, 16)]
    return [*decode, Workload(f"prefill {prefill_tokens}", 1, prefill_tokens, 1)]
