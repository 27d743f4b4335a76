"""Writes tiny GGUF files in the form that the default model's file has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from models import tiny_llama
from retrofit_cases import TOKENIZERS
from tokenizers import Tokenizer

from server.gguf_convert import BLOCK_NAMES, MODEL_NAMES

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges: three control tokens, then a byte-level vocabulary."""
    data = json.loads((TOKENIZERS / "tiny_bytelevel" / "tokenizer.json").read_text())["model"]
    plain = [t for t in sorted(data["vocab"], key=data["vocab"].get) if t not in CONTROL]
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["merges"]]
    return [*CONTROL, *plain], merges


def write_gguf(path: Path, *, quantised: bool = False, pre: str = "smollm", arch: str = "llama"):
    """A random Llama as GGUF; returns the Hugging Face model whose weights it holds."""
    tokens, merges = vocabulary()
    model = tiny_llama(vocab_size=len(tokens), tie_word_embeddings=True)
    writer = GGUFWriter(path, arch)
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _write_tokenizer(writer, tokens, merges, pre)
    for name, weight in _llama_cpp_weights(model).items():
        _write_tensor(writer, name, weight, quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def backend() -> Tokenizer:
    """The tokenizer whose vocabulary the files carry."""
    return Tokenizer.from_file(str(TOKENIZERS / "tiny_bytelevel" / "tokenizer.json"))


def _write_tokenizer(writer, tokens, merges, pre) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)


def _llama_cpp_weights(model) -> dict[str, np.ndarray]:
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    found = {
        theirs: state[ours] for theirs, ours in MODEL_NAMES.items() if theirs != "output.weight"
    }
    heads = {
        "attn_q.weight": model.config.num_attention_heads,
        "attn_k.weight": model.config.num_key_value_heads,
    }
    for block in range(model.config.num_hidden_layers):
        for theirs, ours in BLOCK_NAMES.items():
            weight = state[f"model.layers.{block}.{ours}"]
            if theirs in heads:
                weight = _interleave(weight, heads[theirs])
            found[f"blk.{block}.{theirs}"] = weight
    return found


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """How llama.cpp stores the rotary halves: side by side instead of one after the other."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _write_tensor(writer, name: str, weight: np.ndarray, quantised: bool) -> None:
    kind = GGMLQuantizationType.Q4_1
    if quantised and weight.ndim == 2:
        writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, weight)
