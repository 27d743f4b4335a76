"""Tiny artefacts that several tests build on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.tables import ArtefactContent, DenseRows, SparseRows
from engram_core.tables.manifest import BackboneRecord, TokenizerRecord

BACKBONE = BackboneRecord(name="tiny", fingerprint="f" * 64, hidden_size=32, num_layers=4)


def tiny_compressor(num_ids=128, num_classes=100):
    return TokenCompressor(np.arange(num_ids, dtype=np.int64) % num_classes)


def tiny_content(*, storage="sparse", dtype="int4", compressor=None, backbone=BACKBONE, **change):
    """An artefact with random rows; `change` overrides configuration keys."""
    compressor = compressor or tiny_compressor()
    config = EngramConfig(
        form="v41", layer_ids=(1, 2), orders=(2, 3), num_heads=2, rows_per_head=(211, 211),
        head_dim=8, hidden_size=backbone.hidden_size, norm_eps=1e-6, use_bias=False,
    )  # fmt: skip
    tokenizer = TokenizerRecord.of(compressor, config)
    layout = HashLayout.build(replace(config, **change), compressor.size)
    generator = torch.Generator().manual_seed(0)
    tables, modules = {}, {}
    for layer in layout.config.layer_ids:
        tables[layer] = _rows(layout.rows[layer], layout.config.head_dim, storage, generator)
        module = EngramModule(layout.config, layer).requires_grad_(False)
        module.kv_weight.copy_(torch.randn(module.kv_weight.shape, generator=generator) * 0.3)
        modules[layer] = module.state_dict()
    return ArtefactContent(
        layout, tokenizer, backbone, tables, modules, dtype, {"made": "for a test"}
    )


def _rows(num_rows, row_dim, storage, generator):
    values = torch.randn(num_rows, row_dim, generator=generator)
    if storage == "dense":
        return DenseRows(values)
    return SparseRows(np.arange(0, num_rows, 3), values[::3].contiguous(), num_rows)
