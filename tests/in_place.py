"""A DeepSeek-V4.1 memory in a folder, for the tiny model of `model_folder`."""

from __future__ import annotations

from imports import TINY_V41, tiny_v41_tensors, write_config, write_shards
from model_folder import TOKENIZER
from safetensors.torch import save_file
from transformers import AutoTokenizer

from engram_core.compression import TokenCompressor


def served_compressor() -> TokenCompressor:
    """The class map of the tiny model's tokenizer."""
    return TokenCompressor.from_tokenizer(AutoTokenizer.from_pretrained(TOKENIZER))


def write_checkpoint(folder, *, seed=0, sharded=True, **change):
    """A checkpoint that fits the tiny model; `change` overrides keys of its configuration."""
    compressor = served_compressor()
    config = {
        **TINY_V41,
        "engram_compressed_vocab_size": compressor.size,
        "vocab_size": compressor.num_ids,
        **change,
    }
    write_config(folder, config)
    tensors = tiny_v41_tensors(config, seed)
    if sharded:
        write_shards(folder, tensors)
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder
