"""Small memories without a model, for tests of lookups and steps."""

from __future__ import annotations

import numpy as np
import torch

from engram_core.config import EngramConfig
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.store.host import HostTier
from engram_core.version import MemoryVersion

NUM_IDS = 64
LAYERS = (1, 3)


def small_memory(
    *, form="v41", orders=(2, 3), min_hit_orders=(), seed=0, wrap=None, rows=None, served=None,
    **variant,
):  # fmt: skip
    """Random rows and weights. `wrap(layer, tier)` may replace a tier, `rows(layer, n, d)` fill.

    `served` are the orders that are read; `variant` overrides further configuration keys.
    """
    config = EngramConfig(
        form=form, layer_ids=LAYERS, orders=orders, num_heads=2,
        rows_per_head=(53,) * len(orders), head_dim=4, hidden_size=8, norm_eps=1e-6,
        min_hit_orders=min_hit_orders, **variant,
    )  # fmt: skip
    layout = HashLayout.build(config, NUM_IDS)
    generator = torch.Generator().manual_seed(seed)
    tiers, modules = {}, {}
    for layer in LAYERS:
        shape = (layout.rows[layer], config.head_dim)
        table = rows(layer, *shape) if rows else torch.randn(shape, generator=generator)
        tier = HostTier(table.bfloat16())
        tiers[layer] = wrap(layer, tier) if wrap else tier
        modules[layer] = EngramModule(config, layer).requires_grad_(False)
        for parameter in modules[layer].parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    hasher = NgramHasher(layout, np.arange(NUM_IDS), served)
    return MemoryVersion(hasher, "small", tiers, modules, content=f"seed {seed}")


def expected_rows(memory, layer, token_ids, history=()):
    """The rows of one sequence looked up one by one: float32 ``[tokens, F]``."""
    ids = memory.hasher.row_ids(token_ids, layer, history)
    out = torch.empty(ids.size, memory.config.head_dim)
    memory.tiers[layer].gather(ids.reshape(-1), out)
    return out.view(len(token_ids), -1)
