"""Facts about a decoder that Engram needs, found by structure and never by a model's name."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from engram_core.errors import UnsupportedModelError

SAMPLED_VALUES = 4096  # of each parameter: any other checkpoint differs in these already


def find_decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The list of decoder layers of a causal language model.

    It is the one ModuleList whose length is the configuration's number of hidden layers and that
    lies in no other such list.

    Raises:
        UnsupportedModelError: there is none, or more than one.
    """
    wanted = text_config(model).num_hidden_layers
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == wanted
    }
    outer = [n for n in found if not any(n.startswith(f"{other}.") for other in found)]
    if len(outer) != 1:
        raise UnsupportedModelError(
            f"{type(model).__name__} has {len(outer)} lists of {wanted} layers; "
            "an Engram memory needs exactly one"
        )
    return found[outer[0]]


def text_config(model: nn.Module) -> Any:
    """The configuration of the model's text decoder."""
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def hidden_size(model: nn.Module) -> int:
    """Width D of the hidden state between decoder layers."""
    return int(text_config(model).hidden_size)


def has_hyper_connections(model: nn.Module) -> bool:
    """Whether its layers pass several hidden streams on (DeepSeek-V4), not one ``[.., D]``."""
    config = text_config(model)
    is_v4 = str(getattr(config, "model_type", "")).startswith("deepseek_v4")
    return is_v4 or hasattr(config, "hc_mult")


def backbone_fingerprint(model: nn.Module) -> str:
    """sha256 (hex) that tells one checkpoint from another, whatever dtype it is loaded in.

    It covers every parameter's name, shape and first values (as bfloat16, the narrowest dtype
    that checkpoints are published in). Take it before weights are packed or swapped.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        sample = parameter.detach().flatten()[:SAMPLED_VALUES].to("cpu", torch.bfloat16)
        digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
