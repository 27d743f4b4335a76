"""Detokenizer: token ids -> text, one token at a time.

Text that ends in the middle of a character is held until the character is complete; `flush` gives
out what is left, so that the pieces together equal decoding everything at once. (tokenizers'
DecodeStream works the same way, but has no flush and fails on prefixes that change.)
Knows nothing about stop strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8  # prompt tokens that decide how the first generated one begins (its leading space)
_MAX_HELD = 64  # a stream of invalid bytes is given out after so many tokens


class Decoder(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str:
        """The text of the ids."""
        ...


class Detokenizer:
    """The text of one generation, as it grows."""

    def __init__(self, decoder: Decoder, prompt_token_ids: Sequence[int]) -> None:
        self._decoder = decoder
        self._ids = list(prompt_token_ids[-_CONTEXT:])
        self._given = self._decode(self._ids)  # the part of the window's text that is out
        if self._given.endswith(_UNFINISHED):  # the prompt itself ends inside a character
            self._ids, self._given = [], ""
        self._held = 0

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that is certain now, possibly none."""
        self._ids.append(token_id)
        self._held += 1
        text = self._decode(self._ids)
        if text.endswith(_UNFINISHED) and self._held < _MAX_HELD:
            return ""
        return self._give(text)

    def flush(self) -> str:
        """The text still held, with replacement characters for what never was completed."""
        return self._give(self._decode(self._ids)) if self._held else ""

    def _give(self, text: str) -> str:
        piece = text[len(self._given) :]
        if piece or self._held >= _MAX_HELD:
            # the newest tokens stay as context for the next ones
            self._ids = self._ids[-max(self._held, 1) :]
            self._given = self._decode(self._ids)
            self._held = 0
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=True)
