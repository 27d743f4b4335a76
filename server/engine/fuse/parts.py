"""LayerParts: what a decoder layer of Llama's kind is made of, whatever model it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from server.engine.attention import AttentionOptions

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class NormParts:
    """RMSNorm: x / rms(x) in float32, cast back, times the weight; the weight is not "1 + w"."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The weights of one layer and how they are used.

    ``h + output(attention(query, key, value of input_norm(h)))``, then
    ``h + down(activation(gate(post_norm(h))) * up(post_norm(h)))``.

    Attributes:
        layer: the layer's index.
        input_norm: before the attention: weight [hidden].
        query, key, value: [hidden] to [heads * head_dim]; biases are allowed.
        output: [num_heads * head_dim] to [hidden].
        query_norm, key_norm: over each head, before the rotation: weight [head_dim]; mostly None.
        post_norm: before the feed-forward: weight [hidden].
        gate, up, down: the feed-forward.
        activation: applied to the gate.
        num_heads, num_kv_heads, head_dim: the shape of the attention.
        options: what the layer asks of its attention.
    """

    layer: int
    input_norm: NormParts
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    query_norm: NormParts | None
    key_norm: NormParts | None
    post_norm: NormParts
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    activation: Activation
    num_heads: int
    num_kv_heads: int
    head_dim: int
    options: AttentionOptions
