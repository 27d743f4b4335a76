"""How many KV blocks an engine gets: what the settings ask for, if the memory is there.

Arithmetic only; `kv_cache` allocates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engram_core.errors import ConfigError
from server.engine.kv_cache import LayerShape
from server.engine.limits import EngineLimits

PADDING_BLOCKS = 1  # block 0 is zero and belongs to nobody


def plan_blocks(shapes: Sequence[LayerShape], dtype: torch.dtype, limits: EngineLimits) -> int:
    """Blocks of the cache, the padding block not counted.

    Raises:
        ConfigError: `kv_cache_bytes` pays for no block, or there is less free memory than needed.
    """
    block_bytes = bytes_per_block(shapes, dtype, limits.block_size)
    if limits.kv_cache_bytes is None:
        num_blocks = limits.max_num_seqs * -(-limits.max_model_len // limits.block_size)
    else:
        num_blocks = limits.kv_cache_bytes // block_bytes - PADDING_BLOCKS
    if num_blocks < 1:
        raise ConfigError(
            f"kv_cache_bytes is {limits.kv_cache_bytes}; accepted: at least {2 * block_bytes}, "
            f"two blocks of {limits.block_size} tokens of this model"
        )
    _refuse_too_large((num_blocks + PADDING_BLOCKS) * block_bytes, limits)
    return num_blocks


def bytes_per_block(shapes: Sequence[LayerShape], dtype: torch.dtype, block_size: int) -> int:
    """Bytes of one block over all layers."""
    return block_size * dtype.itemsize * sum(shape.values_per_token for shape in shapes)


def _refuse_too_large(needed_bytes: int, limits: EngineLimits) -> None:
    free_bytes = limits.free_memory_bytes
    if free_bytes is not None and needed_bytes > free_bytes:
        raise ConfigError(
            f"keys and values of {limits.max_num_seqs} sequences of {limits.max_model_len} tokens "
            f"need {needed_bytes} bytes and {free_bytes} are free; accepted: a smaller "
            "--max-num-seqs, --max-model-len or --kv-cache-memory"
        )
