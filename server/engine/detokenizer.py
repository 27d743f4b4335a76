"""Detokenizer: token ids -> text, one token at a time.

tokenizers' DecodeStream does the work: text that ends in the middle of a character is held until
the character is complete. Added here is what it lacks: `flush`, which gives out what is left, so
that the pieces together equal decoding everything at once. Knows nothing about stop strings.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8  # prompt tokens that decide how the first generated one begins (its leading space)
_MAX_HELD = 64  # a stream of invalid bytes is given out after so many tokens


class Detokenizer:
    """The text of one generation, as it grows."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt_token_ids[-_CONTEXT:])  # tokens whose text is out
        self._held: list[int] = []  # newer tokens, whose text is not
        if self._decode(self._context).endswith(_UNFINISHED):  # the prompt ends inside a character
            self._context = []
        self._stream = self._open_stream()

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that is certain now, possibly none."""
        self._held.append(token_id)
        if len(self._held) > _MAX_HELD:
            return self._restart()
        try:
            piece = self._stream.step(self._tokenizer, token_id)
        except Exception:  # noqa: BLE001 (its own kind: a decoder that rewrites earlier text)
            return self._restart()
        if not piece:
            return ""
        self._context, self._held = self._held, []
        return piece

    def flush(self) -> str:
        """The text still held, with replacement characters for what never was completed."""
        before = self._decode(self._context)
        text = self._decode([*self._context, *self._held])[len(before) :]
        self._context, self._held = self._held, []
        return text

    def _restart(self) -> str:
        """Give out what is held, and go on from there."""
        text = self.flush()
        self._stream = self._open_stream()
        return text

    def _open_stream(self) -> DecodeStream:
        return DecodeStream(ids=self._context, skip_special_tokens=True)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)
