"""The experiment's model: the demo's dimensions around identity blocks, and its memory on disk."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.synthetic_rows import SyntheticRows
from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.tables import Artefact, ArtefactContent, open_table, write_artefact
from engram_core.tables.manifest import BackboneRecord, TokenizerRecord

NUM_LAYERS = 30
ROW_BYTES = 128  # 64 values of bf16
BACKBONE = BackboneRecord(
    "the demo's dimensions", "0" * 64, hidden_size=1024, num_layers=NUM_LAYERS
)
_WEIGHT_SCALE = 0.02


def demo_config(bytes_per_layer: float | None) -> EngramConfig:
    """The demo's configuration (10.34 M rows a layer), or tables of about so many bytes."""
    if bytes_per_layer is None:
        return EngramConfig.from_demo({})
    base = EngramConfig.from_demo({})
    rows = int(bytes_per_layer) // ROW_BYTES // base.num_columns
    return EngramConfig.from_demo({"engram_vocab_size": [rows] * len(base.orders)})


def write_memory(folder: Path, compressor: TokenCompressor, config: EngramConfig) -> Artefact:
    """Write the memory to `folder`, unless it is there already from an earlier run.

    Raises:
        SystemExit: something else is there.
    """
    if not folder.exists():
        layout = HashLayout.build(config, compressor.size)
        total = sum(layout.rows.values())
        print(f"writing {total * ROW_BYTES / 1e9:.2f} GB of rows", file=sys.stderr, flush=True)
        write_artefact(folder, _content(layout, compressor))
    artefact = open_table(folder)
    if artefact.config != config or artefact.layout.compressed_size != compressor.size:
        raise SystemExit(f"{folder.name} holds another memory; accepted: a new --folder")
    return artefact


def _content(layout: HashLayout, compressor: TokenCompressor) -> ArtefactContent:
    config = layout.config
    return ArtefactContent(
        layout=layout,
        tokenizer=TokenizerRecord.of(compressor, config),
        backbone=BACKBONE,
        tables={
            layer: SyntheticRows(layout.rows[layer], config.head_dim, seed=layer)
            for layer in config.layer_ids
        },
        modules={layer: _module(config, layer).state_dict() for layer in config.layer_ids},
        dtype="bfloat16",
        training={"made_for": "benchmarks.three_arm"},
        packed=True,
    )


def _module(config: EngramConfig, layer: int) -> EngramModule:
    module = EngramModule(config, layer).requires_grad_(False)
    generator = torch.Generator().manual_seed(layer)
    for name, parameter in module.named_parameters():
        if not name.endswith("norm"):
            parameter.normal_(0.0, _WEIGHT_SCALE, generator=generator)
    return module


@dataclass(frozen=True, slots=True)
class Embedding:
    """What stands before the first block: a vector per token, the same in all hidden streams."""

    weight: torch.Tensor
    num_streams: int

    @classmethod
    def make(
        cls, num_ids: int, config: EngramConfig, dtype: torch.dtype, device: torch.device
    ) -> Embedding:
        """A random one for `num_ids` tokens."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(num_ids, config.hidden_size, generator=generator)
        return cls(weight.to(device, dtype), config.num_streams)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` to ``[tokens, G, D]``."""
        hidden = self.weight[token_ids]
        return hidden[:, None].expand(-1, self.num_streams, -1).contiguous()
