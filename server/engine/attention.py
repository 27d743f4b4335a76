"""The attention function that every layer of the backbone calls.

Registered once with transformers' AttentionInterface under `NAME`. It is handed the step's batch
as a keyword argument of the forward (`engram_batch=`), never through a global. transformers
builds no mask for an implementation that has no mask function, so `NAME` deliberately has none:
the batch masks for itself.

Refuses what it would compute wrongly: a mask, attention sinks, a position bias, or any keyword
that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from engram_core.errors import UnsupportedModelError

NAME = "engram_paged"

# keywords that models pass along and that change nothing here: positions are applied already,
# nothing is dropped at inference, and there is no cache of transformers'
_HARMLESS = frozenset(
    {
        "cache",
        "cache_position",
        "deterministic",
        "dropout",
        "engram_step",
        "is_causal",
        "layer_idx",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
_REASONS = {
    "s_aux": "needs attention sinks, which this server does not compute",
    "position_bias": "adds a position bias, which this server does not compute",
}


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What a layer asks of its attention."""

    scaling: float | None = None
    sliding_window: int | None = None
    softcap: float | None = None


class AttentionStep(Protocol):
    """What travels as `engram_batch`."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
    ) -> Tensor:
        """Attention of packed tokens.

        Args:
            layer: the layer's index.
            query: [heads, tokens, dim]
            key: [kv_heads, tokens, dim]
            value: [kv_heads, tokens, value_dim]
            options: the layer's scaling, window and soft cap.

        Returns:
            [tokens, heads, value_dim]
        """
        ...


def paged_attention(  # noqa: PLR0913 - the signature is transformers'
    module: nn.Module,
    query: Tensor,  # [1, heads, tokens, dim]
    key: Tensor,  # [1, kv_heads, tokens, dim]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    engram_batch: AttentionStep | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention signature; returns [1, tokens, heads, value_dim].

    Raises UnsupportedModelError on anything that would be silently wrong.
    """
    layer, name = layer_index(module), type(module).__name__
    batch = require_batch(name, layer, engram_batch)
    if attention_mask is not None:
        raise UnsupportedModelError(
            f"{name}: layer {layer} builds an attention mask of its own, which a packed batch "
            "cannot obey"
        )
    refuse_unknown(name, layer, kwargs)
    options = AttentionOptions(scaling, sliding_window, softcap)
    out = batch.attend(layer, query[0], key[0], value[0], options)
    return out.unsqueeze(0), None


def layer_index(module: nn.Module) -> int:
    """The decoder layer that an attention module belongs to. Raises UnsupportedModelError."""
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise UnsupportedModelError(
            f"{type(module).__name__} has no layer_idx, so its keys and values cannot be kept apart"
        )
    return index


def require_batch(name: str, layer: int, batch: AttentionStep | None) -> AttentionStep:
    """The batch of the step. Raises UnsupportedModelError when there is none."""
    if batch is None:
        raise UnsupportedModelError(
            f"{name}: layer {layer}: the attention was called without its batch; either the model "
            "does not pass keyword arguments down to its layers, or it was called beside the "
            "engine that serves it"
        )
    return batch


def refuse_unknown(name: str, layer: int, kwargs: dict[str, Any]) -> None:
    """Raise UnsupportedModelError when a keyword with a value is not known to be harmless."""
    for key in kwargs.keys() - _HARMLESS:
        if kwargs[key] is not None:
            reason = _REASONS.get(key, f"passes {key!r} to its attention, which is not supported")
            raise UnsupportedModelError(f"{name}: layer {layer} {reason}")


AttentionInterface.register(NAME, paged_attention)
