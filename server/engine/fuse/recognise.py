"""Recognises decoder layers of Llama's kind by what they are made of, never by a model's name.

The attribute names are those that nearly all models of transformers share. That the parts are
used in the expected way cannot be seen here; `fusing` compares the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engine.attention import AttentionOptions
from server.engine.fuse.parts import Activation, LayerParts, NormParts

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
_EPS_NAMES = ("variance_epsilon", "eps")
_ACTIVATION_NAMES = ("act_fn", "activation_fn", "act")


class _NotAlikeError(Exception):
    """Why a layer is not of Llama's kind: the end of a sentence about it."""


def recognise(layer: nn.Module, index: int, options: AttentionOptions) -> LayerParts | str:
    """The parts of a layer, or the reason, in one sentence, why it is not of Llama's kind."""
    try:
        return _parts(layer, index, options)
    except _NotAlikeError as reason:
        return f"layer {index} {reason}"


def _parts(layer: nn.Module, index: int, options: AttentionOptions) -> LayerParts:
    norms = [_norm(layer, name) for name in ("input_layernorm", "post_attention_layernorm")]
    attention, feed_forward = _owner(layer, _PROJECTIONS), _owner(layer, _FEED_FORWARD)
    query, key, value, output = (_linear(attention, name) for name in _PROJECTIONS)
    gate, up, down = (_linear(feed_forward, name) for name in _FEED_FORWARD)
    head_dim = _head_dim(attention, index)
    query_norm, key_norm = _head_norms(attention, head_dim)
    parts = LayerParts(
        layer=index,
        input_norm=norms[0],
        query=query,
        key=key,
        value=value,
        output=output,
        query_norm=query_norm,
        key_norm=key_norm,
        post_norm=norms[1],
        gate=gate,
        up=up,
        down=down,
        activation=_activation(feed_forward),
        num_heads=query.out_features // head_dim,
        num_kv_heads=key.out_features // head_dim,
        head_dim=head_dim,
        options=options,
    )
    _refuse_more(layer, parts)
    _refuse_shapes(parts)
    return parts


# --- finding the parts ---


def _owner(layer: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """The one child that has all these projections."""
    owners = [child for child in layer.children() if all(hasattr(child, name) for name in names)]
    if len(owners) != 1:
        number = "more than one part" if owners else "no part"
        raise _NotAlikeError(f"has {number} with {', '.join(names)}")
    return owners[0]


def _linear(owner: nn.Module, name: str) -> nn.Linear:
    linear = getattr(owner, name)
    if type(linear) is not nn.Linear:  # a subclass may do more than multiply
        raise _NotAlikeError(f"has a {name} of type {type(linear).__name__} instead of Linear")
    return linear


def _norm(owner: nn.Module, name: str) -> NormParts:
    norm = getattr(owner, name, None)
    if not isinstance(norm, nn.Module):
        raise _NotAlikeError(f"has no {name}")
    weights = dict(_tensors(norm))
    eps = next((getattr(norm, eps) for eps in _EPS_NAMES if hasattr(norm, eps)), None)
    if set(weights) != {"weight"} or weights["weight"].ndim != 1 or not isinstance(eps, float):
        raise _NotAlikeError(f"has no RMSNorm of one weight vector and an epsilon as {name}")
    return NormParts(weights["weight"], eps)


def _head_norms(attention: nn.Module, head_dim: int) -> tuple[NormParts | None, NormParts | None]:
    names = ("q_norm", "k_norm")
    present = [getattr(attention, name, None) is not None for name in names]
    if not any(present):
        return None, None
    norms = [_norm(attention, name) for name in names]
    for name, norm in zip(names, norms, strict=True):
        if norm.weight.numel() != head_dim:
            raise _NotAlikeError(
                f"has a {name} over {norm.weight.numel()} values instead of one head's {head_dim}"
            )
    return norms[0], norms[1]


def _head_dim(attention: nn.Module, index: int) -> int:
    head_dim, own_index = (getattr(attention, name, None) for name in ("head_dim", "layer_idx"))
    if not isinstance(head_dim, int):
        raise _NotAlikeError("has an attention without a head_dim")
    if own_index != index:
        raise _NotAlikeError(f"calls itself layer {own_index}")
    return head_dim


def _activation(feed_forward: nn.Module) -> Activation:
    """Known by its values, since a name says less than they do."""
    names = [name for name in _ACTIVATION_NAMES if callable(getattr(feed_forward, name, None))]
    if len(names) != 1:
        raise _NotAlikeError(f"has {len(names)} activations instead of one")
    found: Any = getattr(feed_forward, names[0])
    x = torch.linspace(-8, 8, 257)
    if not (isinstance(found, nn.Module) and any(True for _ in _tensors(found))):
        y = found(x)
        if torch.allclose(y, functional.silu(x), atol=1e-6):
            return "silu"
        if torch.allclose(y, functional.gelu(x, approximate="tanh"), atol=1e-6):
            return "gelu_tanh"
    raise _NotAlikeError(f"has the activation {found!r}, which is neither SiLU nor tanh-GELU")


# --- refusing what is different ---


def _refuse_more(layer: nn.Module, parts: LayerParts) -> None:
    """A parameter, a buffer or a hook that is none of the parts would be lost."""
    known = {id(tensor) for tensor in _weights(parts)}
    more = [name for name, tensor in _tensors(layer) if id(tensor) not in known]
    if more:
        raise _NotAlikeError(f"has {more[0]}, which is no part of a layer of Llama's kind")
    for name, module in layer.named_modules():
        if name and (module._forward_hooks or module._forward_pre_hooks):
            raise _NotAlikeError(f"has a hook on {name}, which would be lost")


def _refuse_shapes(parts: LayerParts) -> None:
    """Projections whose sizes contradict each other, as those of a gated attention do."""
    heads, kv_heads = parts.num_heads, parts.num_kv_heads
    expected = {
        "query": (parts.query.out_features, heads * parts.head_dim),
        "key": (parts.key.out_features, kv_heads * parts.head_dim),
        "value": (parts.value.out_features, kv_heads * parts.head_dim),
        "output": (parts.output.in_features, heads * parts.head_dim),
        "up": (parts.up.out_features, parts.gate.out_features),
        "down": (parts.down.in_features, parts.gate.out_features),
    }
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise _NotAlikeError(f"has a projection {name} of size {found} instead of {wanted}")


def _weights(parts: LayerParts) -> Iterator[Tensor]:
    for part in (getattr(parts, name) for name in LayerParts.__slots__):
        if isinstance(part, NormParts):
            yield part.weight
        elif isinstance(part, nn.Linear):
            yield from part.parameters()


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
