"""FusedLayer: takes the place of a decoder layer of Llama's kind.

One product gives query, key and value, one gives gate and up, and query and key are rotated
together. The arithmetic is that of transformers: norms in float32, products in the model's dtype.
The weights lie in plain linear layers, so that they can be packed like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engine.attention import AttentionStep, refuse_unknown, require_batch
from server.engine.fuse.norm import FusedNorm
from server.engine.fuse.parts import Activation, LayerParts, NormParts

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


class FusedLayer(nn.Module):
    """A decoder layer with fused weights; its parts may be dropped once it is made."""

    def __init__(self, parts: LayerParts) -> None:
        super().__init__()
        self.layer, self.options = parts.layer, parts.options
        self.num_heads, self.num_kv_heads = parts.num_heads, parts.num_kv_heads
        self.head_dim = parts.head_dim
        self.input_norm = FusedNorm(parts.input_norm)
        self.qkv = _stack(parts.query, parts.key, parts.value)
        self.query_norm = _optional_norm(parts.query_norm)
        self.key_norm = _optional_norm(parts.key_norm)
        self.output = parts.output
        self.post_norm = FusedNorm(parts.post_norm)
        self.gate_up = _stack(parts.gate, parts.up)
        self.down = parts.down
        self.activation = parts.activation
        self._activate = _ACTIVATIONS[parts.activation]

    def forward(
        self,
        hidden_states: Tensor,  # [1, tokens, hidden]
        *,
        position_embeddings: tuple[Tensor, Tensor],
        engram_batch: AttentionStep | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Called like the layer it replaces; returns [1, tokens, hidden].

        Args:
            hidden_states: the packed tokens of a step.
            position_embeddings: cosines and sines [1, tokens, rotated dims].
            engram_batch: the step's attention.
            kwargs: refused unless they change nothing.

        Raises:
            UnsupportedModelError: no batch, or a keyword that this layer does not obey.
        """
        batch = require_batch("FusedLayer", self.layer, engram_batch)
        refuse_unknown("FusedLayer", self.layer, kwargs)
        attended = self._attend(self.input_norm(hidden_states), position_embeddings, batch)
        hidden = hidden_states + self.output(attended)
        out: Tensor = hidden + self._feed_forward(self.post_norm(hidden))
        return out

    def _attend(
        self, normed: Tensor, position_embeddings: tuple[Tensor, Tensor], batch: AttentionStep
    ) -> Tensor:
        tokens = normed.shape[1]
        heads = self.qkv(normed).reshape(tokens, -1, self.head_dim)  # [tokens, all heads, head_dim]
        num_rotated = self.num_heads + self.num_kv_heads
        query_key = _rotate(self._norm_heads(heads[:, :num_rotated]), *position_embeddings)
        query, key = query_key.transpose(0, 1).tensor_split((self.num_heads,))
        value = heads[:, num_rotated:].transpose(0, 1)
        out = batch.attend(self.layer, query, key, value, self.options)
        return out.reshape(1, tokens, -1)

    def _norm_heads(self, query_key: Tensor) -> Tensor:
        """Normalise each query and key over its head, if the layer does."""
        if self.query_norm is None or self.key_norm is None:
            return query_key
        query, key = query_key.tensor_split((self.num_heads,), dim=1)
        return torch.cat((self.query_norm(query), self.key_norm(key)), dim=1)

    def _feed_forward(self, normed: Tensor) -> Tensor:
        gate, up = self.gate_up(normed).chunk(2, dim=-1)
        out: Tensor = self.down(self._activate(gate) * up)
        return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dims of [tokens, heads, head_dim], as many as there are cosines."""
    cos, sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)  # [tokens, 1, rotated dims]
    num_rotated = cos.shape[-1]
    if num_rotated == x.shape[-1]:
        return _rotate_whole(x, cos, sin)
    rotated = _rotate_whole(x[..., :num_rotated], cos, sin)
    return torch.cat((rotated, x[..., num_rotated:]), dim=-1)


def _rotate_whole(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _stack(*linears: nn.Linear) -> nn.Linear:
    """One linear layer whose output is theirs, side by side."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    fused = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if any(linear.bias is not None for linear in linears):
        biases = [_bias(linear) for linear in linears]
        fused.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return fused


def _bias(linear: nn.Linear) -> Tensor:
    if linear.bias is None:
        return linear.weight.new_zeros(linear.out_features)
    return linear.bias.detach()


def _optional_norm(parts: NormParts | None) -> FusedNorm | None:
    return None if parts is None else FusedNorm(parts)
