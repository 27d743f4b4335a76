"""KeptPrompts: prompts that can be had a second time, as when a conversation comes back."""

from __future__ import annotations

from benchmarks.prompt_source import Prompts


class KeptPrompts:
    """Passes prompts on and keeps them.

    Args:
        source: where new ones come from.
    """

    def __init__(self, source: Prompts) -> None:
        self._source = source
        self._kept: list[list[list[int]]] = []

    def take(self, num_prompts: int, num_tokens: int) -> list[list[int]]:
        """New prompts of this length."""
        self._kept.append(self._source.take(num_prompts, num_tokens))
        return self._kept[-1]

    def replay(self) -> Prompts:
        """What was taken so far, once more and in the same order."""
        return _Replay(list(self._kept))


class _Replay:
    def __init__(self, kept: list[list[list[int]]]) -> None:
        self._kept = iter(kept)

    def take(self, num_prompts: int, num_tokens: int) -> list[list[int]]:
        taken = next(self._kept, [])
        if len(taken) != num_prompts or any(len(each) != num_tokens for each in taken):
            raise ValueError(f"no {num_prompts} prompts of {num_tokens} tokens were kept")
        return taken
