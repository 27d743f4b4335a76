"""Reads an adapter folder of engram-peft 1.2: its configuration and one safetensors file.

The library hashes in its own way: rows per order are divided among the heads, the first multiplier
belongs to the oldest token, shorter n-grams end where the longest one's window allows (so they lag
behind the current token), ids beyond the tokenizer's vocabulary stay as they are. One hidden stream
passes several gates, whose outputs are summed. Its `qwen_ple` engine and tables outside the adapter
are something else and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engram_core.compression import TokenCompressor, vocabulary_size
from engram_core.config import DEMO_NORM_EPS, EngramConfig
from engram_core.errors import ArtefactError
from engram_core.layout import HashLayout
from engram_core.tables.float_reader import FloatReader
from engram_core.tables.foreign_layout import build_layout, check_offsets, check_rows
from engram_core.tables.imported import ClassMaps, ImportedMemory
from engram_core.tables.json_file import integer, integers
from engram_core.tables.module_states import peft_module_state
from engram_core.tables.tensor_source import TensorSource, TensorSpec

FORMAT = "engram_peft"
MARK = ".gating.w_v.weight"
CONFIG_NAME = "config.json"
ADAPTER_NAME = "engram_adapters.safetensors"
LORA_NAME = "adapter_config.json"
VERSIONS = "1.2."
TABLE, OFFSETS = "multi_head_embedding.embedding.weight", "multi_head_embedding.offsets"


def read_peft(source: TensorSource, data: Mapping[str, Any], maps: ClassMaps) -> ImportedMemory:
    """The memory of an adapter.

    Args:
        source: the adapter's tensors.
        data: its ``config.json``.
        maps: where the class map comes from; without a tokenizer there is none, unless the
            adapter does not fold tokens.

    Raises:
        ArtefactError: a key, a tensor or a number is not what the format asks for.
    """
    config = _config(data)
    layout = _layout(source, config)
    source.check(_specs(layout))
    for layer in config.layer_ids:
        offsets = source.read(f"{layer}.{OFFSETS}").tolist()
        check_offsets(layout, layer, offsets, source.name)
    compressor = _compressor(config, maps)
    return ImportedMemory(
        source_format=FORMAT,
        layout=layout,
        tables={layer: FloatReader(source, f"{layer}.{TABLE}") for layer in config.layer_ids},
        modules={layer: _module(source, config, layer) for layer in config.layer_ids},
        compressor=compressor,
        num_token_ids=compressor.num_ids if compressor else None,
    )


def refuse_lora(folder: Path) -> None:
    """Refuse a folder in which the adapter is one half of a pair.

    Raises:
        ArtefactError: a LoRA adapter lies there too.
    """
    if (folder / LORA_NAME).exists():
        raise ArtefactError(
            f"{folder.name} also holds a LoRA adapter ({LORA_NAME}), without which its memory "
            "answers wrongly; accepted: a folder of the memory alone, for a backbone into which "
            "the LoRA was merged"
        )


def _config(data: Mapping[str, Any]) -> EngramConfig:
    _check_variant(data)
    orders = integers(data, "ngram_sizes", CONFIG_NAME, 2)
    heads = integer(data, "n_head_per_ngram", CONFIG_NAME, 1)
    totals = integers(data, "engram_vocab_size_per_ngram", CONFIG_NAME, 1)
    width = integer(data, "embedding_dim", CONFIG_NAME, 1)
    columns = len(orders) * heads
    if width % columns:
        raise ArtefactError(
            f"{CONFIG_NAME}: embedding_dim is {width}; accepted: a multiple of {columns}, the "
            "orders times the heads"
        )
    dilation = data.get("conv_dilation")
    return EngramConfig(
        form="demo",
        # the library takes its primes in this order, however target_layers lists them
        layer_ids=tuple(sorted(integers(data, "target_layers", CONFIG_NAME))),
        orders=orders,
        num_heads=heads,
        rows_per_head=tuple(total // heads for total in totals),
        head_dim=width // columns,
        hidden_size=integer(data, "hidden_size", CONFIG_NAME, 1),
        pad_id=integer(data, "pad_id", CONFIG_NAME),
        seed=integer(data, "seed", CONFIG_NAME),
        kernel_size=integer(data, "conv_kernel_size", CONFIG_NAME, 1),
        norm_eps=DEMO_NORM_EPS,  # torch's own, which is float32's whatever the weights' dtype
        use_bias=False,
        compressed_size=integer(data, "compressed_vocab_size", CONFIG_NAME, 1),
        multiplier_order="oldest_first",
        lags=tuple(max(orders) - order for order in orders),
        num_branches=integer(data, "hc_mult", CONFIG_NAME, 1),
        conv_dilation=None if dilation is None else integer(data, "conv_dilation", CONFIG_NAME, 1),
        folds_tokens=bool(data.get("enable_tokenizer_compression", True)),
        keeps_unmapped_ids=True,
    )


def _check_variant(data: Mapping[str, Any]) -> None:
    """Refuse what shares the format and computes something else."""
    version = data.get("engram_version")
    if not isinstance(version, str) or not version.startswith(VERSIONS):
        raise ArtefactError(
            f"{CONFIG_NAME}: engram_version is {version!r}; accepted: {VERSIONS}x, the format of "
            "engram-peft 1.2"
        )
    accepted: dict[str, tuple[Any, ...]] = {
        "engine": ("deepseek",),
        "table_spec": (None, "ENG_DEEPSEEK_V1"),
        "table_source": ("memory",),
        "enable_tokenizer_compression": (True, False),
    }
    for key, values in accepted.items():
        value = data.get(key, values[0])  # what is left out takes the library's default
        if value not in values:
            choices = " or ".join(repr(each) for each in values)
            raise ArtefactError(f"{CONFIG_NAME}: {key} is {value!r}; accepted: {choices}")


def _layout(source: TensorSource, config: EngramConfig) -> HashLayout:
    tables = {layer: f"{layer}.{TABLE}" for layer in config.layer_ids}
    missing = sorted(set(tables.values()) - source.names)
    if missing:
        raise ArtefactError(f"{source.name} lacks {', '.join(missing)}")
    rows = {layer: source.num_rows(name) for layer, name in tables.items()}
    size = config.compressed_size or 0
    layout = build_layout(config, size, [*rows.values()], source.name)
    for layer, found in rows.items():
        check_rows(layout, layer, found, source.name)
    return layout


def _specs(layout: HashLayout) -> dict[str, TensorSpec]:
    config = layout.config
    width, memory = config.hidden_size, config.memory_dim
    specs: dict[str, TensorSpec] = {}
    for layer in config.layer_ids:
        one_layer = {
            TABLE: TensorSpec((layout.rows[layer], config.head_dim)),
            OFFSETS: TensorSpec((config.num_columns,), ("I64",)),
            "gating.w_v.weight": TensorSpec((width, memory)),
            "short_conv.conv.weight": TensorSpec((config.conv_channels, 1, config.kernel_size)),
        }
        for branch in range(config.num_branches):
            one_layer[f"gating.w_k.{branch}.weight"] = TensorSpec((width, memory))
            for norm in ("gating.norm_h", "gating.norm_k", "short_conv.norms"):
                one_layer[f"{norm}.{branch}.weight"] = TensorSpec((width,))
        specs |= {f"{layer}.{name}": spec for name, spec in one_layer.items()}
    return specs


def _module(source: TensorSource, config: EngramConfig, layer: int) -> dict[str, torch.Tensor]:
    prefix = f"{layer}."
    tables = (prefix + TABLE, prefix + OFFSETS)
    names = [name for name in source.names if name.startswith(prefix) and name not in tables]
    state = {k.removeprefix(prefix): tensor for k, tensor in source.read_alike(names).items()}
    return peft_module_state(state, config.num_gates)


def _compressor(config: EngramConfig, maps: ClassMaps) -> TokenCompressor | None:
    """The class map: of the tokenizer's vocabulary without added tokens, or of no folding."""
    if not config.folds_tokens:
        size = config.compressed_size
        return TokenCompressor.unfolded(size) if size else None
    given = maps.tokenizer
    is_ready = given is None or isinstance(given, TokenCompressor)
    return maps.build(None if is_ready else vocabulary_size(given), config.compressed_size)
