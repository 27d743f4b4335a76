"""Writes a Hugging Face Llama folder as a GGUF file, so that llama.cpp computes with equal bits.

The inverse of `server.gguf_convert`, weights only: prompts arrive as token ids, so the file
carries no vocabulary, just its size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from safetensors import safe_open

from server.gguf_convert import BLOCK_NAMES, MODEL_NAMES

# bits -> the type of the matrices in the blocks, and of the token embedding
TYPES = {
    "fp32": (GGMLQuantizationType.F32, GGMLQuantizationType.F32),
    "bf16": (GGMLQuantizationType.BF16, GGMLQuantizationType.BF16),
    "int8": (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q8_0),
    "int4": (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0),
}
_NAMES = {ours: theirs for theirs, ours in (MODEL_NAMES | BLOCK_NAMES).items()}


def export_gguf(folder: Path, path: Path, bits: str) -> None:
    """Write the model in `folder` to `path`; `bits` is a key of TYPES.

    Raises:
        ValueError: the model is not of the Llama architecture.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != "llama":
        raise ValueError(f"model_type is {config.get('model_type')!r}; accepted: 'llama'")
    writer = GGUFWriter(path, "llama")
    _write_parameters(writer, config)
    for name, values in _weights(folder):
        kind = _type_of(name, values, bits)
        data = quantize(_split_rotary_rows(name, values, config), kind)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_parameters(writer: GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(_rope_theta(config))
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _rope_theta(config: dict[str, Any]) -> float:
    rope = config.get("rope_parameters") or {}
    return float(rope.get("rope_theta", config.get("rope_theta", 10_000.0)))


def _weights(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                yield name, file.get_tensor(name).float().numpy()


def _type_of(name: str, values: np.ndarray, bits: str) -> GGMLQuantizationType:
    in_blocks, embedding = TYPES[bits]
    if values.ndim == 1:
        return GGMLQuantizationType.F32  # norms: llama.cpp knows no other
    return embedding if name in MODEL_NAMES.values() else in_blocks


def _gguf_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, _, block, rest = name.split(".", 3)  # model.layers.N.rest
    return f"blk.{block}.{_NAMES[rest]}"


def _split_rotary_rows(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Interleave each head's two rotary halves in the Q and K matrices, as llama.cpp wants them."""
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config.get("num_key_value_heads", config["num_attention_heads"]),
    }.get(name.split(".")[-2])
    if heads is None:
        return values
    rows, columns = values.shape
    halves = values.reshape(heads, 2, rows // heads // 2, columns)  # [heads, pair, half, columns]
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
