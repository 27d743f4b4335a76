"""Turns a Llama-architecture GGUF file into a Hugging Face folder with safetensors weights.

The tensors are read, dequantised and renamed one by one, so neither a model object nor a
framework's own GGUF loader is needed. Does not know where the file came from, nor about caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from server.load_errors import LoadError

Fraction = Callable[[float], None]

# llama.cpp's names -> Hugging Face's, outside and inside the blocks ("blk.N.")
MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL
CLASSIC_GPT2 = "gpt2"


def convert_gguf(gguf_path: Path, out_dir: Path, progress: Fraction) -> None:
    """Write config, bfloat16 weights, fast tokenizer and generation config into `out_dir`.

    `progress` receives the fraction done, 0 to 1. Raises LoadError for another architecture
    or tokenizer kind than Llama with byte-level BPE.
    """
    reader = GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _check_kind(fields)
    config = read_config(fields, tied="output.weight" not in {t.name for t in reader.tensors})
    config.save_pretrained(out_dir)
    _generation_config(config).save_pretrained(out_dir)
    read_tokenizer(fields).save_pretrained(out_dir)
    weights = _read_weights(reader, config, progress)
    path = out_dir / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # written readable by its owner only; a cache may be shared


def read_config(fields: Mapping[str, Any], *, tied: bool) -> LlamaConfig:
    """The model's configuration; `tied`: the output matrix is the embedding matrix."""
    special = _special_ids(fields)
    config = LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=int(fields["llama.embedding_length"]),
        intermediate_size=int(fields["llama.feed_forward_length"]),
        num_hidden_layers=int(fields["llama.block_count"]),
        num_attention_heads=int(fields["llama.attention.head_count"]),
        num_key_value_heads=int(fields["llama.attention.head_count_kv"]),
        max_position_embeddings=int(fields["llama.context_length"]),
        rms_norm_eps=_shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=special["bos_token"],
        eos_token_id=special["eos_token"],
        pad_token_id=special["pad_token"],
    )
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.bfloat16
    return config


def read_tokenizer(fields: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The byte-level BPE tokenizer with its special tokens and chat template."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(BPE({text: i for i, text in enumerate(tokens)}, merges))
    backend.pre_tokenizer = _pre_tokenizer(fields["tokenizer.ggml.pre"])
    backend.decoder = decoders.ByteLevel()
    control = [text for text, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in control]
    )
    names = {name: tokens[i] for name, i in _special_ids(fields).items()}
    make: Any = PreTrainedTokenizerFast  # untyped in the library
    return make(  # type: ignore[no-any-return]
        tokenizer_object=backend,
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=int(fields["llama.context_length"]),
        clean_up_tokenization_spaces=False,
        **names,
    )


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == CLASSIC_GPT2:
        return byte_level
    if kind == "smollm":  # as its authors trained it: each digit stands alone
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level])
    raise LoadError(f"the GGUF file's pre-tokenizer is {kind!r}; accepted: smollm, gpt2")


def _check_kind(fields: Mapping[str, Any]) -> None:
    for key, accepted in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")):
        if fields.get(key) != accepted:
            raise LoadError(f"the GGUF file's {key} is {fields.get(key)!r}; accepted: {accepted}")


def _special_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    return {
        "bos_token": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token": int(fields["tokenizer.ggml.padding_token_id"]),
    }


def _generation_config(config: LlamaConfig) -> GenerationConfig:
    make: Any = GenerationConfig  # untyped in the library
    return make(  # type: ignore[no-any-return]
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )


def _read_weights(
    reader: GGUFReader, config: LlamaConfig, progress: Fraction
) -> dict[str, torch.Tensor]:
    weights = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = _pair_rotary_rows(tensor.name, values, config)
        weights[_hugging_face_name(tensor.name)] = torch.from_numpy(values).to(torch.bfloat16)
        progress(done / len(reader.tensors))
    return weights


def _pair_rotary_rows(name: str, values: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """Undo llama.cpp's interleaving of each head's two rotary halves in the Q and K matrices."""
    heads = {
        "attn_q.weight": config.num_attention_heads,
        "attn_k.weight": config.num_key_value_heads,
    }.get(name.split(".", 2)[-1])
    if heads is None:
        return values
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)  # [heads, half, pair, columns]
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _hugging_face_name(name: str) -> str:
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    _, block, rest = name.split(".", 2)
    if rest not in BLOCK_NAMES:
        raise LoadError(f"the GGUF file holds an unknown tensor {name!r}")
    return f"model.layers.{block}.{BLOCK_NAMES[rest]}"


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32 (9.999999747378752e-06 -> 1e-05)."""
    return float(str(np.float32(value)))
