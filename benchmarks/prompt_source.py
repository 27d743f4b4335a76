"""Prompts for a comparison: windows of one text, none of which begins like an earlier one.

Every contender gets the same token ids. Some take text only, so a window is used only if its text
tokenises to the same ids again. No prompt shares a prefix with another: a prefix cache finds
nothing, on either side.
"""

from __future__ import annotations

import pydoc_data.topics
from typing import Any, Protocol

NEXT_LAP = 3  # tokens by which the windows of a further pass over the text begin later


class Prompts(Protocol):
    """Where a comparison takes its prompts from."""

    def take(self, num_prompts: int, num_tokens: int) -> list[list[int]]:
        """The next prompts, each of this length."""


class PromptSource:
    """Fresh prompts, for ever.

    Args:
        tokenizer: of the model that is compared.
        text: where the windows are cut from; default: English that every Python carries.
    """

    def __init__(self, tokenizer: Any, text: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._ids = self._encode(reference_text() if text is None else text)
        self._position, self._lap = 0, 0

    def take(self, num_prompts: int, num_tokens: int) -> list[list[int]]:
        """Prompts of this length. Raises ValueError when the text is shorter than one of them."""
        return [self._next(num_tokens) for _ in range(num_prompts)]

    @property
    def laps(self) -> int:
        """Finished passes over the text; 0 as long as no part of a prompt was in an earlier one."""
        return self._lap

    def text(self, prompt: list[int]) -> str:
        """A prompt as text; encoding it gives the prompt again."""
        return str(self._tokenizer.decode(prompt))

    def _next(self, num_tokens: int) -> list[int]:
        tries = len(self._ids)
        for _ in range(tries):
            window = self._window(num_tokens)
            if self._encode(self.text(window)) == window:
                self._position += num_tokens
                return window
            self._position += 1
        raise ValueError(f"no part of the text makes a prompt of {num_tokens} tokens")

    def _window(self, num_tokens: int) -> list[int]:
        if self._position + num_tokens > len(self._ids):
            self._lap += 1
            self._position = self._lap * NEXT_LAP
        window = self._ids[self._position : self._position + num_tokens]
        if len(window) < num_tokens:
            raise ValueError(f"a prompt has {num_tokens} tokens, the text {len(self._ids)}")
        return window

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, verbose=False)["input_ids"]
        return ids


def reference_text() -> str:
    """English text that every Python carries: the topics of its interactive help."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))
