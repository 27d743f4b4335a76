"""Attention over given keys and values: causal for a stretch, masked for one token each.

Pure functions of tensors. Grouped queries fold into the query length, so that keys and values
are never repeated for a decode step. scaled_dot_product_attention does the work, except with a
soft cap, which it does not know.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from server.engine.attention import AttentionOptions


def attend_one_each(
    query: Tensor,  # [sequences, heads, dim]
    key: Tensor,  # [sequences, keys, kv_heads, dim]
    value: Tensor,  # [sequences, keys, kv_heads, value_dim]
    mask: Tensor,  # [sequences, 1, 1, keys], added to the scores
    options: AttentionOptions,
) -> Tensor:
    """One query token per sequence; returns [sequences, heads, value_dim]."""
    sequences, heads, dim = query.shape
    kv_heads = key.shape[2]
    # heads of one group are neighbours: they become the query positions of their key head
    grouped = query.reshape(sequences, kv_heads, heads // kv_heads, dim)
    out = _attend(grouped, key.transpose(1, 2), value.transpose(1, 2), mask, options)
    return out.reshape(sequences, heads, -1)


def attend_stretch(
    query: Tensor,  # [heads, tokens, dim]
    key: Tensor,  # [kv_heads, keys, dim]
    value: Tensor,  # [kv_heads, keys, value_dim]
    mask: Tensor | None,  # [tokens, keys], added to the scores; None: causal, keys == tokens
    options: AttentionOptions,
) -> Tensor:
    """A stretch of one sequence; returns [tokens, heads, value_dim]."""
    groups = query.shape[0] // key.shape[0]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    batched = (query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0))
    return _attend(*batched, mask, options, is_causal=mask is None)[0].transpose(0, 1)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: AttentionOptions,
    *,
    is_causal: bool = False,
) -> Tensor:
    if options.softcap is not None:
        if is_causal:
            mask = window_mask(query.shape[2], key.shape[2], None, query)
        scaling = query.shape[-1] ** -0.5 if options.scaling is None else options.scaling
        return _attend_capped(query * scaling, key, value, mask, options.softcap)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=options.scaling, is_causal=is_causal
    )


def _attend_capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, softcap: float
) -> Tensor:
    """Attention of a scaled query whose scores stay within ``softcap``."""
    scores = torch.matmul(query, key.transpose(-1, -2))
    scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)


def window_mask(num_tokens: int, num_keys: int, window: int | None, like: Tensor) -> Tensor:
    """A causal mask whose last rows meet the last keys, optionally with a sliding window.

    ``is_causal`` of scaled_dot_product_attention starts both at the first key, which is wrong
    for a chunk with earlier keys. Returns [num_tokens, num_keys] of 0 and -inf.
    """
    last = torch.arange(num_keys - num_tokens, num_keys, device=like.device).unsqueeze(1)
    places = torch.arange(num_keys, device=like.device).unsqueeze(0)
    hidden = places > last
    if window is not None:
        hidden |= places <= last - window
    mask = torch.zeros(num_tokens, num_keys, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(hidden, float("-inf"))
