"""How a model calls its decoder layers, recorded in one forward over a few tokens.

The recorded calls are replayed with another hidden state, so that nothing is assumed about a
model's rotary embedding or about what it hands down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engram_core.backbone import text_config
from server.engine.attention import AttentionOptions
from server.engine.attention_math import attend_stretch, window_mask

NUM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a decoder layer: its hidden state [1, tokens, hidden], the rest as it was given."""

    hidden: Tensor | None  # None: it bears another name
    more_args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _OneSequence:
    """An `AttentionStep` over one whole sequence."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
    ) -> Tensor:
        """See `attention.AttentionStep.attend`."""
        window, tokens = options.sliding_window, query.shape[1]
        mask = None if window is None else window_mask(tokens, tokens, window, query)
        return attend_stretch(query, key, value, mask, options)


@torch.inference_mode()
def record_calls(model: Any, layers: Iterable[nn.Module]) -> dict[int, Call]:
    """The last call of each layer; the model has our attention switched on."""
    places_of = {layer: index for index, layer in enumerate(layers)}
    calls: dict[int, Call] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        more = dict(kwargs)
        hidden, *rest = args if args else (more.pop("hidden_states", None),)
        calls[places_of[module]] = Call(hidden, tuple(rest), more)

    handles = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in places_of]
    places = torch.arange(NUM_TOKENS, device=model.device)
    try:
        model(
            input_ids=((7 * places * places + 3) % text_config(model).vocab_size).unsqueeze(0),
            position_ids=places.unsqueeze(0),
            use_cache=False,
            engram_batch=_OneSequence(),
            engram_step=None,
        )
    finally:
        for handle in handles:
            handle.remove()
    return calls
