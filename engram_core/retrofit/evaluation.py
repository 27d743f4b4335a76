"""Measures a memory: exact recall of facts, perplexity of text, and the permuted-rows control.

Works on a loaded model with or without a memory attached; knows nothing about training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from engram_core.layout import HashLayout
from engram_core.retrofit.examples import Example, make_example
from engram_core.retrofit.facts import Fact
from engram_core.tables import SparseRows

BATCH_SIZE = 16


@torch.no_grad()
def exact_recall(model: Any, tokenizer: Any, facts: Sequence[Fact], context: str = "") -> float:
    """Share of facts whose greedy continuation is the whole completion, behind `context`."""
    examples = [make_example(tokenizer, context, fact) for fact in facts]
    return sum(sum(_recalled(model, batch)) for batch in _equal_lengths(examples)) / len(facts)


@torch.no_grad()
def perplexity(
    model: Any, tokenizer: Any, text: str, *, max_tokens: int = 20_000, window: int = 512
) -> float:
    """Perplexity of a text's first `max_tokens`, cut into windows that start afresh."""
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"][:max_tokens])
    losses = [
        F.cross_entropy(model(part[None]).logits[0, :-1].float(), part[1:], reduction="none")
        for part in torch.split(ids, window)
        if len(part) > 1
    ]
    return math.exp(float(torch.cat(losses).mean()))


def permuted(rows: SparseRows, layout: HashLayout, layer: int, seed: int = 0) -> SparseRows:
    """The same written places with their rows shuffled inside each head.

    The control for "the gain is in the rows that are looked up": every position finds a written
    row exactly where it found one before, and only what the rows say is wrong.
    """
    generator = np.random.default_rng(seed)
    borders = np.searchsorted(rows.row_ids, layout.offsets[layer][1:])
    heads = np.split(np.arange(len(rows.row_ids)), borders)
    order = np.concatenate([generator.permutation(head) for head in heads])
    return SparseRows(rows.row_ids, rows.values[torch.from_numpy(order)], rows.num_rows)


def _recalled(model: Any, batch: Sequence[Example]) -> list[bool]:
    """Teacher-forced: every value token is the likeliest one, which is what greedy would pick."""
    ids = torch.tensor([example.token_ids for example in batch])
    guesses = model(ids).logits.argmax(-1)  # [batch, tokens]
    return [
        bool((guess[e.value_start - 1 : -1] == row[e.value_start :]).all())
        for guess, row, e in zip(guesses, ids, batch, strict=True)
    ]


def _equal_lengths(examples: Sequence[Example]) -> Iterator[list[Example]]:
    """Batches of examples of one length: a memory takes no padding."""
    ordered = sorted(examples, key=lambda e: len(e.token_ids))
    for _, group in groupby(ordered, key=lambda e: len(e.token_ids)):
        same = list(group)
        for start in range(0, len(same), BATCH_SIZE):
            yield same[start : start + BATCH_SIZE]
