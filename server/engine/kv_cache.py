"""KVCache: keys and values of all layers, in blocks.

Addressed by slot = block * block_size + place in the block. Block 0 is zero and stays so: block
tables are padded with it. Knows nothing about sequences; who owns a block is the pool's affair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from server.engine.aligned import aligned_bytes


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer stores for a token."""

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def values_per_token(self) -> int:
        """Numbers that one token occupies."""
        return self.num_heads * (self.key_dim + self.value_dim)


class KVCache:
    """Two tensors per layer: ``[num_blocks + 1, block_size, heads, dim]``."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size

        # zeros, not empty: a masked place must hold a finite number, or it poisons the softmax
        def zeros(num_heads: int, dim: int) -> Tensor:
            return _zeros((num_blocks + 1, block_size, num_heads, dim), dtype, device)

        self.keys = [zeros(shape.num_heads, shape.key_dim) for shape in shapes]
        self.values = [zeros(shape.num_heads, shape.value_dim) for shape in shapes]

    @property
    def nbytes(self) -> int:
        """Memory of all blocks."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store tokens: ``slots`` int64 [tokens]; ``key``, ``value`` [tokens, heads, dim]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, key)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, value)

    def gather(self, layer: int, blocks: Tensor, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Copies of blocks, int64 [num_sequences * n].

        Returns two tensors [num_sequences, n * block_size, heads, dim].
        """
        key = self.keys[layer].index_select(0, blocks)
        value = self.values[layer].index_select(0, blocks)
        return (
            key.view(num_sequences, -1, *key.shape[2:]),
            value.view(num_sequences, -1, *value.shape[2:]),
        )

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold NaN, before somebody else gets them."""
        if blocks:
            rows = torch.tensor(blocks, device=self.keys[0].device)
            for tensor in (*self.keys, *self.values):
                tensor.index_fill_(0, rows, 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros; on the host as pages that take memory only once they are written."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(aligned_bytes(num_bytes)).view(dtype).view(shape)
