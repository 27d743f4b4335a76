"""BlockPool: which blocks of the KV cache are free.

Hands out block numbers only; knows neither tensors nor who holds a block.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """A free list over blocks ``1 .. num_blocks``.

    Block 0 is never handed out: it stays zero, and block tables are padded with it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks, 0, -1))
        self._is_free = [True] * (num_blocks + 1)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that are handed out."""
        return self.num_blocks - len(self._free)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit when every block is used by one sequence."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks. Raises ValueError when fewer are free: ask `num_free` first."""
        if count > len(self._free):
            raise ValueError(f"{count} KV blocks asked for, {len(self._free)} are free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._is_free[block] = False
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Give blocks back. Raises ValueError on a block that is not handed out."""
        for block in blocks:
            if block < 1 or self._is_free[block]:
                raise ValueError(f"KV block {block} is given back but was not handed out")
            self._is_free[block] = True
            self._free.append(block)
