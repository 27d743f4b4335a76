"""Reads the Engram part of a DeepSeek-V4.1 checkpoint under its released names.

Six tensors a layer: a table of e4m3 bytes with a power-of-two scale per 32 columns, one fused
projection with a scale per 32 x 32 block (or not quantised at all), and the gate's two weights.
Knows nothing of the rest of the model. (engram-spec section 7.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engram_core.config import V41_REQUIRED, EngramConfig
from engram_core.errors import ArtefactError, ConfigError
from engram_core.layout import HashLayout
from engram_core.tables.float8_reader import SCALE_BLOCK, Float8Reader, dequantise
from engram_core.tables.foreign_layout import build_layout, check_rows
from engram_core.tables.imported import ClassMaps, ImportedMemory
from engram_core.tables.json_file import integer, integers
from engram_core.tables.module_states import v41_module_state
from engram_core.tables.tensor_source import TensorSource, TensorSpec

FORMAT = "deepseek_v41"
MARK = ".engram."  # in the names of all its tensors and of no other
TABLE_SUFFIX = ".engram.embed.weight"
CONFIG_NAME = "config.json"
PAYLOAD, SCALE = ("F8_E4M3",), ("F8_E8M0",)


def read_v41(source: TensorSource, data: Mapping[str, Any], maps: ClassMaps) -> ImportedMemory:
    """The memory of a checkpoint.

    Args:
        source: the tensors whose names hold `MARK`.
        data: the model's ``config.json``.
        maps: where the class map comes from; without a tokenizer there is none.

    Raises:
        ArtefactError: a key, a tensor or a number is not what the format asks for.
    """
    config = _config(data)
    num_ids = integer(data, "vocab_size", CONFIG_NAME, 1) if "vocab_size" in data else None
    compressor = maps.build(num_ids, config.compressed_size)
    compressed_size = compressor.size if compressor else config.compressed_size
    if compressed_size is None:
        raise ConfigError(
            f"{CONFIG_NAME} has no engram_compressed_vocab_size; accepted: the key, or the model's "
            "tokenizer (table info and verify take --tokenizer or --model)"
        )
    layout = _layout(source, config, compressed_size)
    source.check(_specs(source, layout))
    prefixes = {layer: _prefix(layer) for layer in config.layer_ids}
    return ImportedMemory(
        source_format=FORMAT,
        layout=layout,
        tables={
            layer: Float8Reader(source, f"{prefix}embed.weight", f"{prefix}embed.scale")
            for layer, prefix in prefixes.items()
        },
        modules={layer: _module(source, prefix) for layer, prefix in prefixes.items()},
        compressor=compressor,
        num_token_ids=compressor.num_ids if compressor else num_ids,
    )


def _config(data: Mapping[str, Any]) -> EngramConfig:
    missing = [key for key in V41_REQUIRED if key not in data]
    if missing:
        raise ArtefactError(f"{CONFIG_NAME} lacks {', '.join(missing)}, which DeepSeek-V4.1 has")
    integers(data, "engram_layer_ids", CONFIG_NAME)
    optional = (
        "engram_compressed_vocab_size",
        "engram_pad_token_id",
        "engram_pad_id",
        "engram_seed",
    )
    given = [key for key in optional if key in data]
    for key in (*V41_REQUIRED[1:], *given):
        integer(data, key, CONFIG_NAME)
    for key in ("hidden_size", "hc_mult"):
        if key in data:
            integer(data, key, CONFIG_NAME, 1)
    if data.get("engram_num_embeddings") is not None:
        integers(data, "engram_num_embeddings", CONFIG_NAME, 1)
    eps = data.get("rms_norm_eps", 0.0)
    if isinstance(eps, bool) or not isinstance(eps, int | float):
        raise ArtefactError(f"{CONFIG_NAME}: rms_norm_eps is {eps!r}; accepted: a number")
    return EngramConfig.from_v41(data)


def _layout(source: TensorSource, config: EngramConfig, compressed_size: int) -> HashLayout:
    tables = {layer: f"{_prefix(layer)}embed.weight" for layer in config.layer_ids}
    missing = sorted(set(tables.values()) - source.names)
    if missing:
        raise ArtefactError(f"{source.name} lacks {', '.join(missing)}")
    rows = {layer: source.num_rows(name) for layer, name in tables.items()}
    layout = build_layout(config, compressed_size, [*rows.values()], source.name)
    for layer, found in rows.items():
        check_rows(layout, layer, found, source.name)
    return layout


def _specs(source: TensorSource, layout: HashLayout) -> dict[str, TensorSpec]:
    config = layout.config
    gates, width = config.num_gates, config.hidden_size
    projection = ((gates + 1) * width, config.memory_dim)
    specs: dict[str, TensorSpec] = {}
    for layer in config.layer_ids:
        rows, prefix = layout.rows[layer], _prefix(layer)
        specs |= {
            f"{prefix}embed.weight": TensorSpec((rows, config.head_dim), PAYLOAD),
            f"{prefix}embed.scale": TensorSpec((rows, _blocks(config.head_dim)), SCALE),
            f"{prefix}q_weight": TensorSpec((gates, width)),
            f"{prefix}k_weight": TensorSpec((gates, width)),
        }
        if _is_plain(source, prefix):
            specs[f"{prefix}wkv.weight"] = TensorSpec(projection)
        else:
            blocks = (_blocks(projection[0]), _blocks(projection[1]))
            specs[f"{prefix}wkv.weight"] = TensorSpec(projection, PAYLOAD)
            specs[f"{prefix}wkv.scale"] = TensorSpec(blocks, SCALE)
    return specs


def _is_plain(source: TensorSource, prefix: str) -> bool:
    """Whether the projection is stored as plain numbers, which need no scales."""
    name = f"{prefix}wkv.weight"
    has_scales = f"{prefix}wkv.scale" in source.names
    return name in source.names and not has_scales and source.entry(name).dtype not in PAYLOAD


def _module(source: TensorSource, prefix: str) -> dict[str, torch.Tensor]:
    """The dense weights in float32, in which the released model computes."""
    projection = source.read(f"{prefix}wkv.weight")
    if not _is_plain(source, prefix):
        scales = source.read(f"{prefix}wkv.scale")
        projection = dequantise(projection, scales, block_rows=SCALE_BLOCK)
    state = {name: source.read(f"{prefix}{name}").float() for name in ("q_weight", "k_weight")}
    return v41_module_state({**state, "wkv.weight": projection.float()})


def _prefix(layer: int) -> str:
    return f"layers.{layer}{MARK}"


def _blocks(size: int) -> int:
    return -(-size // SCALE_BLOCK)
