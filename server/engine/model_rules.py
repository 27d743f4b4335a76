"""What a model's configuration already says against serving it.

Every rule names the layer or the field and the reason. What a configuration does not show is
found by `self_check`. Knows configurations only, no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from engram_core.backbone import text_config
from engram_core.errors import ConfigError, UnsupportedModelError

_KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
# frequencies of these depend on the longest sequence of the batch once it passes the original
# length, so a sequence's text would depend on its neighbours
_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def refuse_by_config(model: nn.Module, max_model_len: int) -> None:
    """Check the configuration.

    Raises:
        UnsupportedModelError: the model would be served silently wrong.
        ConfigError: ``max_model_len`` exceeds the model's positions.
    """
    config = text_config(model)
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder; this server continues text with decoder-only models"
        )
    _refuse_layer_types(name, config)
    _refuse_shared_keys(name, config)
    _refuse_rope(name, config, max_model_len)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max_model_len > positions:
        raise ConfigError(
            f"max_model_len is {max_model_len}; accepted: at most {positions}, "
            f"the positions that {name} was made for"
        )


def _refuse_layer_types(name: str, config: Any) -> None:
    for layer, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind not in _KNOWN_LAYERS:
            raise UnsupportedModelError(
                f"{name}: layer {layer} is of type {kind!r}, whose state this server does not "
                "keep; supported are full and sliding-window attention"
            )


def _refuse_shared_keys(name: str, config: Any) -> None:
    shared = getattr(config, "num_kv_shared_layers", 0) or 0
    if shared:
        first = config.num_hidden_layers - shared
        raise UnsupportedModelError(
            f"{name}: layer {first} reads the keys of another layer, which this server does not do"
        )


def _refuse_rope(name: str, config: Any, max_model_len: int) -> None:
    for rope in _ropes(config):
        kind = rope.get("rope_type", rope.get("type", "default"))
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", config.max_position_embeddings
        )
        if kind in _BATCH_DEPENDENT_ROPE and max_model_len > original:
            raise UnsupportedModelError(
                f"{name}: every layer's rotary scaling ({kind}) depends on the longest sequence of "
                f"a batch beyond {original} tokens; max_model_len is {max_model_len}, "
                f"accepted: at most {original}"
            )


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """The rotary settings: one, or one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in rope.values() if isinstance(value, Mapping)]
    yield from nested or [rope]


def refuse_windows(model: nn.Module, windows: Mapping[int, int | None], max_model_len: int) -> None:
    """Compare the windows that layers asked for with those that the configuration declares.

    ``windows`` is what each layer passed to its attention. A window of at least ``max_model_len``
    tokens changes nothing. Raises UnsupportedModelError, naming the layer.
    """
    config = text_config(model)
    for layer, asked in sorted(windows.items()):
        declared = _declared_window(config, layer)
        if _effective(asked, max_model_len) != _effective(declared, max_model_len):
            raise UnsupportedModelError(
                f"{type(model).__name__}: layer {layer} declares a window of {declared} tokens but "
                f"asks its attention for {asked}; it would see other tokens than it was trained on"
            )


def _declared_window(config: Any, layer: int) -> int | None:
    kinds = getattr(config, "layer_types", None)
    window: int | None = getattr(config, "sliding_window", None)
    if kinds:
        return window if kinds[layer] == "sliding_attention" else None
    return window if getattr(config, "use_sliding_window", True) else None


def _effective(window: int | None, max_model_len: int) -> int | None:
    return None if window is None or window >= max_model_len else window
