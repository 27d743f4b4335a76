"""Tiny random models and memories that several tests build on."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engram_core.backbone import find_decoder_layers, hidden_size
from engram_core.config import EngramConfig
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.store.host import HostTier
from engram_core.version import MemoryVersion

NUM_IDS = 128


def tiny_llama(**change):
    settings = {
        "vocab_size": NUM_IDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "initializer_range": 0.3,
    }  # fmt: skip
    return random_model(LlamaConfig(**{**settings, **change}))


def random_model(config, seed: int = 0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def random_memory(
    model, *, form="v41", layer_ids=(1, 2), orders=(2, 3), seed=0, class_ids=None, wrap=lambda t: t
):
    """A memory with random rows and weights that really changes the model's output.

    Form "peft" is the demo's with all that engram-peft does differently.
    """
    variant = {}
    if form == "peft":
        form, variant = "demo", {
            "multiplier_order": "oldest_first", "lags": tuple(orders[-1] - n for n in orders),
            "num_branches": 3, "conv_dilation": 2, "keeps_unmapped_ids": True, "use_bias": False,
        }  # fmt: skip
    assert max(layer_ids) < len(find_decoder_layers(model))
    config = EngramConfig(
        form=form, layer_ids=layer_ids, orders=orders, num_heads=2,
        rows_per_head=(211,) * len(orders), head_dim=8, hidden_size=hidden_size(model),
        norm_eps=1e-6, **variant,
    )  # fmt: skip
    class_ids = np.arange(NUM_IDS) % 100 if class_ids is None else class_ids
    layout = HashLayout.build(config, int(class_ids.max()) + 1)
    generator = torch.Generator().manual_seed(seed)

    def filled(*shape):
        return torch.randn(*shape, generator=generator)

    tiers, modules = {}, {}
    for layer in layer_ids:
        tiers[layer] = wrap(HostTier(filled(layout.rows[layer], config.head_dim).bfloat16()))
        modules[layer] = EngramModule(config, layer).requires_grad_(False)
        for parameter in modules[layer].parameters():
            parameter.copy_(filled(*parameter.shape) * 0.3)
    hasher = NgramHasher(layout, class_ids)
    return MemoryVersion(hasher, "tiny", tiers, modules, content=f"random-{seed}")
