"""Penalties on tokens that were seen before.

Repetition counts prompt and generated tokens (as transformers does); frequency and presence count
generated tokens only (as the OpenAI API defines them). Works on one row of logits, in place.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from server.engine.sequence import Sequence
from server.engine.types import SamplingParams


def has_penalties(params: SamplingParams) -> bool:
    """Whether any penalty changes the logits."""
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )


def apply_penalties(row: Tensor, sequence: Sequence) -> None:
    """Penalise a row of logits, float32 [vocabulary], for what the sequence holds already."""
    params = sequence.request.sampling
    if params.repetition_penalty != 1.0:
        _repetition(row, sequence.token_ids, params.repetition_penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        _frequency(row, sequence.generated_ids, params)


def _repetition(row: Tensor, token_ids: list[int], penalty: float) -> None:
    """Divide positive logits and multiply negative ones (arXiv 1909.05858, section 4.1)."""
    seen = torch.from_numpy(np.unique(np.array(token_ids, dtype=np.int64))).to(row.device)
    scores = row[seen]
    row[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)


def _frequency(row: Tensor, generated_ids: list[int], params: SamplingParams) -> None:
    ids, counts = np.unique(np.array(generated_ids, dtype=np.int64), return_counts=True)
    cost = counts * params.frequency_penalty + params.presence_penalty
    seen = torch.from_numpy(ids).to(row.device)
    row[seen] -= torch.from_numpy(cost.astype(np.float32)).to(row.device)
