"""Vocabulary: which token ids exist, and which of them end a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Facts about tokens that model and tokenizer know together.

    Attributes:
        num_ids: ids below this one have a text; a model's padded vocabulary is larger.
        eos_ids: tokens that end a text.
    """

    num_ids: int
    eos_ids: frozenset[int]

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> Self:
        """Read the model's generation settings (else its configuration) and the tokenizer."""
        settings = getattr(model, "generation_config", None) or model.config
        declared = _as_ids(getattr(settings, "eos_token_id", None))
        return cls(len(tokenizer), declared | _as_ids(tokenizer.eos_token_id))


def _as_ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)
