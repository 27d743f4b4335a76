"""The shapes that are measured. Knows neither prompts' texts nor who computes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape of work.

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


def workloads(context: int, new_tokens: int, prefill_tokens: int) -> dict[str, Workload]:
    """The published shapes by the name that selects them."""
    shapes = [Workload(f"decode-{n}", n, context, new_tokens) for n in (1, 8, 16)]
    shapes.append(Workload("prefill", 1, prefill_tokens, 1))
    return {shape.name: shape for shape in shapes}
