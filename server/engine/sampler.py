"""Sampler: logits -> the next token of each row.

Greedy rows share one argmax. Sampled rows are drawn by inverting the cumulative distribution at a
random number that depends only on the request's seed and the absolute generated position, so one
seed gives one text, whatever the batch, chunking or preemption. Log-probabilities are the
model's own, before penalties and temperature. Knows no text.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from server.engine.filters import apply_filters
from server.engine.penalties import apply_penalties, has_penalties
from server.engine.sequence import Sequence
from server.engine.types import SamplingParams

Statistics = Callable[[Tensor], tuple[Tensor, Tensor]]

_UINT53 = 1.0 / (1 << 53)


@dataclass(frozen=True, slots=True)
class Choice:
    """The token chosen for one row, and the most likely ones beside it."""

    token_id: int
    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Sampler:
    """Chooses tokens; ids from ``num_ids`` on (padding of the vocabulary) are never chosen."""

    def __init__(self, num_ids: int, statistics: Statistics | None = None) -> None:
        self._num_ids = num_ids
        self._statistics = statistics or row_statistics

    def sample(self, logits: Tensor, sequences: Rows[Sequence]) -> list[Choice | None]:
        """Choose for each row of ``logits`` [rows, vocabulary]; None where the row is not finite.

        A row counts as finite when its maximum does: -inf marks impossible tokens and is fine.
        """
        scores = logits[:, : self._num_ids].float()
        token_ids, norms = self._statistics(scores)
        finite = torch.isfinite(norms).tolist()
        self._choose(scores, sequences, finite, token_ids)
        logprobs = scores.gather(1, token_ids.unsqueeze(1)).squeeze(1) - norms
        chosen = zip(token_ids.tolist(), logprobs.tolist(), strict=True)
        return [
            _choice(pair, scores[row], norms[row], sequence.request.sampling)
            if finite[row]
            else None
            for row, (pair, sequence) in enumerate(zip(chosen, sequences, strict=True))
        ]

    def _choose(
        self, scores: Tensor, sequences: Rows[Sequence], finite: list[bool], token_ids: Tensor
    ) -> None:
        """Replace the most likely ids of rows that are to be drawn or penalised."""
        for row, sequence in enumerate(sequences):
            params = sequence.request.sampling
            if finite[row] and (params.do_sample or has_penalties(params)):
                token_ids[row] = _choose_one(scores[row].clone(), sequence)


def row_statistics(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Of float32 [rows, vocabulary]: the place of each maximum, and the log-sum-exp."""
    return scores.argmax(-1), torch.logsumexp(scores, -1)


def _choose_one(row: Tensor, sequence: Sequence) -> Tensor | int:
    params = sequence.request.sampling
    apply_penalties(row, sequence)
    if not params.do_sample:
        return row.argmax()
    narrowed = apply_filters(row / params.temperature, params)
    return draw(narrowed, random_number(params.seed, sequence.num_generated))


def draw(row: Tensor, number: float) -> int:
    """Invert the cumulative distribution of a row of logits at ``number`` in [0, 1)."""
    weights = torch.softmax(row, -1, dtype=torch.float64)
    cumulative = weights.cumsum(0)
    target = torch.tensor([number], dtype=torch.float64, device=row.device) * cumulative[-1]
    index = int(torch.searchsorted(cumulative, target, right=True))
    if index < row.shape[0] and weights[index] > 0:
        return index
    return int(weights.nonzero()[-1])  # rounding put the target past the last possible token


def random_number(seed: int, position: int) -> float:
    """The uniform number in [0, 1) of a generated position; the same on every platform."""
    bits = np.random.Philox(key=seed, counter=position).random_raw()
    return (int(bits) >> 11) * _UINT53


def _choice(
    pair: tuple[int, float], scores: Tensor, norm: Tensor, params: SamplingParams
) -> Choice:
    if not params.top_n_tokens:
        return Choice(*pair)
    top = torch.topk(scores, min(params.top_n_tokens, scores.shape[0]))
    return Choice(*pair, tuple(top.indices.tolist()), tuple((top.values - norm).tolist()))


def token_logprobs(logits: Tensor, token_ids: list[int]) -> list[float]:
    """Log-probability of ``token_ids[i]`` under row i of ``logits`` [rows, vocabulary]."""
    scores = logits.float()
    ids = torch.tensor(token_ids, device=logits.device).unsqueeze(1)
    picked = scores.gather(1, ids).squeeze(1) - torch.logsumexp(scores, -1)
    values: list[float] = picked.tolist()
    return values
