"""Filters that narrow the choice of the next token: top_k, top_p, min_p, typical_p.

Each takes one row of logits (float32 [vocabulary], -inf where a token is out already) and returns
it narrowed; the order of application is transformers'. At least one token always remains.
"""

from __future__ import annotations

import torch
from torch import Tensor

from server.engine.types import SamplingParams

_PREFIX = 1024  # candidates sorted first; a full sort of a vocabulary costs milliseconds


def apply_filters(row: Tensor, params: SamplingParams) -> Tensor:
    """Apply the filters that the request asks for."""
    if params.top_k is not None and 0 < params.top_k < row.shape[0]:
        row = top_k(row, params.top_k)
    if params.top_p is not None and params.top_p < 1.0:
        row = top_p(row, params.top_p)
    if params.min_p is not None and params.min_p > 0.0:
        row = min_p(row, params.min_p)
    if params.typical_p is not None and params.typical_p < 1.0:
        row = typical_p(row, params.typical_p)
    return row


def top_k(row: Tensor, count: int) -> Tensor:
    """Keep the ``count`` most likely tokens (ties with the last one stay)."""
    threshold = torch.topk(row, count).values[-1]
    return row.masked_fill(row < threshold, float("-inf"))


def top_p(row: Tensor, mass: float) -> Tensor:
    """Keep the fewest most likely tokens that together reach ``mass``."""
    kept = _reach_mass(row, torch.softmax(row, -1), mass)
    return _keep_only(row, kept)


def min_p(row: Tensor, share: float) -> Tensor:
    """Keep tokens at least ``share`` times as likely as the most likely one."""
    threshold = row.max() + torch.tensor(share, device=row.device).log()
    return row.masked_fill(row < threshold, float("-inf"))


def typical_p(row: Tensor, mass: float) -> Tensor:
    """Keep the tokens nearest to the expected surprise that reach ``mass`` (arXiv 2202.00666)."""
    logprobs = torch.log_softmax(row, -1)
    probabilities = logprobs.exp()
    entropy = -torch.nansum(probabilities * logprobs)
    distance = (-logprobs - entropy).abs()
    kept = _reach_mass(-distance, probabilities, mass)
    return _keep_only(row, kept)


def _reach_mass(order_by: Tensor, probabilities: Tensor, mass: float) -> Tensor:
    """Ids in descending ``order_by`` until their probabilities reach ``mass``."""
    for count in (min(_PREFIX, order_by.shape[0]), order_by.shape[0]):
        ids = torch.topk(order_by, count).indices
        before = probabilities[ids].to(torch.float64).cumsum(0)
        needed = int((before < mass).sum()) + 1
        if needed <= count:
            return ids[:needed]
    return ids


def _keep_only(row: Tensor, ids: Tensor) -> Tensor:
    narrowed = torch.full_like(row, float("-inf"))
    narrowed[ids] = row[ids]
    return narrowed
