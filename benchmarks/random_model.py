"""Models of known shapes with random weights, a random memory for them, and a tokenizer.

Speed and equality need no trained weights, so nothing is downloaded. Needs torch, transformers and
numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig

from engram_core.config import EngramConfig
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.store.base import Tier
from engram_core.version import MemoryVersion

POSITIONS = 2048
# the dimensions of SmolLM2-135M and of Llama-3.1-8B
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "smollm2": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
# of 8b's width, small enough for float32 on a host: for the comparison with the CPU
CHECKED: dict[str, dict[str, Any]] = {
    "8b": {"num_hidden_layers": 4, "vocab_size": 32000, "tie_word_embeddings": True}
}
_FILL_VALUES = 2**22


class NumberTokenizer:
    """The text of token n is "n": what an engine needs of a tokenizer."""

    eos_token_id = None
    all_special_ids = ()

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids
        vocabulary = {str(number): number for number in range(num_ids)}
        self.backend_tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))

    def __len__(self) -> int:
        return self._num_ids


@dataclass(frozen=True, slots=True)
class RandomModel:
    """How to make one model again and again: an engine rewrites the layers of the one it gets.

    Attributes:
        shape: of `SHAPES`.
        dtype: number format of its weights.
        device: where it runs.
        made_on: where its numbers are drawn; the same numbers only there.
        change: other dimensions than the shape's.
        seed: of the weights.
    """

    shape: str
    dtype: torch.dtype
    device: torch.device
    made_on: torch.device
    change: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def config(self) -> LlamaConfig:
        """Its dimensions."""
        settings = {**SHAPES[self.shape], "max_position_embeddings": POSITIONS, **self.change}
        return LlamaConfig(**settings, bos_token_id=None, eos_token_id=None, pad_token_id=None)

    def build(self) -> Any:
        """A new frozen model with the same weights as all others of this recipe."""
        build: Any = AutoModelForCausalLM.from_config  # untyped in the library
        torch.manual_seed(self.seed)
        with torch.device(self.made_on):
            model = build(self.config, dtype=self.dtype)
        return model.to(self.device).eval().requires_grad_(False)


def random_memory(
    model: RandomModel, num_rows: int, make_tier: Callable[[torch.Tensor], Tier], seed: int = 0
) -> MemoryVersion:
    """A memory in two layers, with the demo's 16 rows of 64 values per token and layer.

    Args:
        model: of the models that it is for.
        num_rows: rows of each layer's table, about.
        make_tier: puts a table ``[rows, 64]`` (bfloat16, host memory) where lookups find it.
        seed: of rows and weights; the same seed gives the same memory, wherever it lies.
    """
    shape = model.config
    depth = shape.num_hidden_layers
    config = EngramConfig(
        form="v41", layer_ids=(1, depth // 2), orders=(2, 3), num_heads=8,
        rows_per_head=(num_rows // 16,) * 2, head_dim=64, hidden_size=shape.hidden_size,
        norm_eps=1e-6,
    )  # fmt: skip
    layout = HashLayout.build(config, shape.vocab_size)
    generator = torch.Generator().manual_seed(seed)
    tiers, modules = {}, {}
    for layer in config.layer_ids:
        tiers[layer] = make_tier(_random_rows(layout.rows[layer], config.head_dim, generator))
        module = EngramModule(config, layer).requires_grad_(False)
        module.kv_weight.normal_(0.0, 0.02, generator=generator)
        modules[layer] = module.to(model.device, model.dtype)
    hasher = NgramHasher(layout, np.arange(shape.vocab_size))
    return MemoryVersion(hasher, "random", tiers, modules, content=f"seed {seed}")


def _random_rows(num_rows: int, row_dim: int, generator: torch.Generator) -> torch.Tensor:
    """One block of numbers again and again: distinct values matter less than distinct addresses."""
    block = torch.randn(_FILL_VALUES, generator=generator).bfloat16()
    rows = torch.empty(num_rows * row_dim, dtype=torch.bfloat16)
    for start in range(0, len(rows), _FILL_VALUES):
        part = rows[start : start + _FILL_VALUES]
        part.copy_(block[: len(part)])
    return rows.view(num_rows, row_dim)
