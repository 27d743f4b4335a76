"""BlockPool: which blocks of the KV cache are free, who shares them, which are worth keeping.

A block may have several holders, and it may be kept under a key that says what it contains. A kept
block without a holder stays until it is needed: the free list is used up first, then the kept
block that went unused for longest is given out. Hands out numbers only; knows neither tensors nor
sequences, and not how a key is made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any


class BlockPool:
    """Blocks ``1 .. num_blocks``.

    Block 0 is never handed out: it stays zero, and block tables are padded with it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks, 0, -1))
        self._holders = [0] * (num_blocks + 1)
        self._blocks: dict[bytes, int] = {}  # kept blocks by key
        self._kept: dict[int, tuple[bytes, Any]] = {}  # their keys and companions by block
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept, not held; longest unused first

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds and that are kept for reuse."""
        return len(self._idle)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit when every block is used by one sequence."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def holders(self, block: int) -> int:
        """How many hold a block."""
        return self._holders[block]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks that nobody holds.

        Raises ValueError when fewer are free: ask `num_free` first.
        """
        if count > self.num_free:
            raise ValueError(f"{count} KV blocks asked for, {self.num_free} are free")
        while len(self._free) < count:
            self.forget([next(iter(self._idle))])
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, blocks: Collection[int]) -> None:
        """Add a holder to kept or held blocks. Raises ValueError on a free block."""
        for block in blocks:
            if not self._holders[block] and block not in self._idle:
                raise ValueError(f"KV block {block} is shared but holds nothing")
            self._idle.pop(block, None)
            self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Let go of a sequence's blocks, in its order; returns those that nobody holds any more.

        The end of a sequence is given out again before its beginning, which others may share.
        Raises ValueError on a block that is not handed out.
        """
        unheld: list[int] = []
        for block in reversed(blocks):
            if block < 1 or not self._holders[block]:
                raise ValueError(f"KV block {block} is given back but was not handed out")
            self._holders[block] -= 1
            if not self._holders[block]:
                unheld.append(block)
                self._put_away(block)
        return unheld

    def _put_away(self, block: int) -> None:
        if block in self._kept:
            self._idle[block] = None
        else:
            self._free.append(block)

    # --- what blocks contain ---

    def keep(self, block: int, key: bytes, companion: Any = None) -> None:
        """Keep a held block for reuse under ``key``, unless another block has that key.

        Args:
            block: a full block; its content must not change while it is kept.
            key: names the content.
            companion: whatever belongs to the content; `companion` gives it back.

        Raises:
            ValueError: nobody holds the block, or it is kept under another key.
        """
        if not self._holders[block]:
            raise ValueError(f"KV block {block} is to be kept but nobody holds it")
        if self._blocks.get(key, block) != block:
            return  # the same content twice: one of them is enough
        if self._kept.setdefault(block, (key, companion))[0] != key:
            raise ValueError(f"KV block {block} is kept under another key already")
        self._blocks[key] = block

    def find(self, key: bytes) -> int | None:
        """The block that is kept under ``key``; may be asked from any thread."""
        return self._blocks.get(key)

    def companion(self, block: int) -> Any:
        """What was given to `keep` with a kept block."""
        return self._kept[block][1]

    def count_idle(self, blocks: Collection[int]) -> int:
        """How many of these blocks are kept and not held."""
        return sum(block in self._idle for block in blocks)

    def forget(self, blocks: Collection[int]) -> None:
        """Keep these blocks no longer; those that nobody holds are free then."""
        for block in blocks:
            if block not in self._kept:
                continue
            key, _ = self._kept.pop(block)
            del self._blocks[key]
            if block in self._idle:
                del self._idle[block]
                self._free.append(block)
