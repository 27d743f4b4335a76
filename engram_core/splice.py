"""Splices an Engram memory into a Hugging Face decoder, in front of the layers that read it.

What a forward carries to its Engram layers travels as the keyword argument `engram_step`, which
transformers hands down to every decoder layer: there is no global "current batch". An engine
builds that step itself; in a plain `model(...)` or `generate(...)` a pre-hook of the model does.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from engram_core.backbone import find_decoder_layers, has_hyper_connections, hidden_size
from engram_core.config import EngramConfig
from engram_core.errors import MismatchError, UnsupportedModelError
from engram_core.plain import PlainMemory
from engram_core.version import MemoryVersion

STEP_KEY = "engram_step"


class Step(Protocol):
    """What one forward pass carries to its Engram layers."""

    def apply(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden state ``[tokens, G, D]`` with the memory of `layer` added."""

    def is_silent(self, layer: int) -> bool:
        """Whether `apply` is known to change nothing and need not be called; never waits."""


class Splice:
    """A memory attached to a model; `detach` leaves the model as it was.

    Attributes:
        version: the memory a plain forward reads; an engine's steps bring their own.
    """

    def __init__(self, model: nn.Module, version: MemoryVersion) -> None:
        self.version = version
        self._plain = PlainMemory(version)
        layers = find_decoder_layers(model)
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._provide_step, with_kwargs=True)
        ]
        for layer in version.config.layer_ids:
            self._handles.append(
                layers[layer].register_forward_pre_hook(_LayerHook(layer), with_kwargs=True)
            )

    def detach(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    def _provide_step(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if STEP_KEY in kwargs:
            return None
        input_ids = args[0] if args else kwargs.get("input_ids")
        if input_ids is None:
            raise UnsupportedModelError(
                "an Engram memory is addressed by token ids; pass input_ids, not inputs_embeds"
            )
        step = self._plain.step(input_ids, kwargs)
        return args, {**kwargs, STEP_KEY: step}


def attach(model: nn.Module, version: MemoryVersion) -> Splice:
    """Let `model` read the memory `version` (arXiv 2601.07372 section 2: before attention).

    Raises:
        MismatchError: the memory was made for another width, for more hidden streams or layers.
        UnsupportedModelError: the decoder's layers cannot be told apart, or pass several hidden
            streams on.
    """
    config = version.config
    check_streams_of_model(model)
    width, depth = hidden_size(model), len(find_decoder_layers(model))
    if config.hidden_size != width:
        raise MismatchError("hidden size", expected=config.hidden_size, found=width)
    check_streams_of_memory(config)
    if max(config.layer_ids) >= depth:
        raise MismatchError("decoder layers", expected=f"> {max(config.layer_ids)}", found=depth)
    return Splice(model, version)


def check_streams_of_model(model: nn.Module) -> None:
    """Refuse a decoder that passes several hidden streams on. Raises UnsupportedModelError."""
    if has_hyper_connections(model):
        raise UnsupportedModelError(
            f"{type(model).__name__} passes several hidden streams through its layers "
            "(hyper-connections), which a memory cannot be spliced into here; accepted: a decoder "
            "with one hidden stream"
        )


def check_streams_of_memory(config: EngramConfig) -> None:
    """Refuse a memory made for a decoder with several hidden streams. Raises MismatchError."""
    if config.num_streams != 1:
        what = "hidden streams (only hyper-connections give a decoder more than one)"
        raise MismatchError(what, expected=config.num_streams, found=1)


class _LayerHook:
    """Adds the memory of one layer to the hidden state that the layer is given."""

    def __init__(self, layer: int) -> None:
        self._layer = layer

    def is_idle(self, kwargs: dict[str, Any]) -> bool:
        """Whether a call with these keywords would change nothing; never waits."""
        step = kwargs.get(STEP_KEY)
        return step is None or bool(step.is_silent(self._layer))

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.is_idle(kwargs):
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        flat = hidden.reshape(-1, 1, hidden.shape[-1])  # [tokens, G = 1, D]
        updated = kwargs[STEP_KEY].apply(self._layer, flat).view_as(hidden)
        if args:
            return (updated, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": updated}
