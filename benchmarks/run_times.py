"""When each token of one run arrived, and the rates that follow. Knows nothing of who made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One run of several sequences side by side; all times on one monotonic clock, in seconds.

    Attributes:
        start_s: when the prompts were handed over.
        token_times_s: per sequence, when each of its tokens arrived.
        token_ids: per sequence, what was generated.
    """

    start_s: float
    token_times_s: Sequence[Sequence[float]]
    token_ids: Sequence[Sequence[int]]

    def decode_rate(self) -> float:
        """Tokens per second while every sequence was decoding.

        The window opens when the last sequence has its first token and closes when the first one
        is finished, so neither prefill nor a half-empty batch is counted.
        """
        opens = max(times[0] for times in self.token_times_s)
        closes = min(times[-1] for times in self.token_times_s)
        if closes <= opens:
            raise ValueError("the sequences never decoded all together; ask for more tokens")
        inside = sum(opens < t <= closes for t in chain.from_iterable(self.token_times_s))
        return inside / (closes - opens)

    def prefill_rate(self, prompt_tokens: int) -> float:
        """Prompt tokens per second until every sequence has its first token."""
        return prompt_tokens / (max(times[0] for times in self.token_times_s) - self.start_s)
