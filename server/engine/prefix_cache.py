"""PrefixCache: lets a sequence start with blocks that another one has computed.

A full block is known by a key that chains the tokens of the whole prefix, seeded with everything
else its content depends on: the memory version, whether the request reads it, the gate's scale,
and whose request it is. Equal keys therefore mean equal keys and values. A block is kept only
once a finite row of logits has come out behind it, and only full of tokens that stay in the
history, so a kept block never changes. Knows no tensors: a convolution's state at the end of a
block is an opaque companion.
"""

from __future__ import annotations

from array import array
from hashlib import sha256

from server.engine.block_pool import BlockPool
from server.engine.sequence import Sequence


class PrefixCache:
    """Reuse of the blocks of one pool. `reach` may be called from any thread."""

    def __init__(self, pool: BlockPool, *, enabled: bool) -> None:
        self._pool = pool
        self._enabled = enabled
        self._queried_tokens = self._hit_tokens = 0

    def reach(self, sequence: Sequence) -> int:
        """Leading tokens that need no computing if the sequence started now."""
        return len(self.match(sequence)) * self._pool.block_size

    def match(self, sequence: Sequence) -> list[int]:
        """The kept blocks of the sequence's longest known prefix; at least one token is left.

        A prompt that is to be judged has none: every one of its positions must be computed.
        """
        if not self._enabled or sequence.request.sampling.prompt_logprobs:
            return []
        blocks: list[int] = []
        for key in self._keys(sequence, (sequence.num_tokens - 1) // self._pool.block_size):
            block = self._pool.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def claim(self, sequence: Sequence, blocks: list[int]) -> None:
        """Let a sequence without blocks start with these, which `match` has just found for it."""
        self._pool.share(blocks)
        sequence.block_table = list(blocks)
        sequence.num_kept_blocks = len(blocks)
        sequence.num_computed = len(blocks) * self._pool.block_size
        if blocks:
            sequence.conv_states = self._pool.companion(blocks[-1])
        if not sequence.num_preemptions:
            sequence.num_cached = sequence.num_computed
        if self._enabled:
            self._queried_tokens += sequence.num_tokens
            self._hit_tokens += sequence.num_computed

    def keep(self, sequence: Sequence) -> None:
        """Keep the full blocks of a sequence whose newest row of logits was finite."""
        if not self._enabled:
            return
        num_full = sequence.num_computed // self._pool.block_size
        for index in range(sequence.num_kept_blocks, num_full):
            snapshot = sequence.snapshots.pop((index + 1) * self._pool.block_size, None)
            if sequence.conv_states is not None and snapshot is None:
                return  # whoever started behind this block could not go on
            key = self._keys(sequence, index + 1)[index]
            self._pool.keep(sequence.block_table[index], key, snapshot)
            sequence.num_kept_blocks = index + 1

    def drain_counts(self) -> tuple[int, int]:
        """Tokens looked up and tokens found since the last call."""
        counts = self._queried_tokens, self._hit_tokens
        self._queried_tokens = self._hit_tokens = 0
        return counts

    def _keys(self, sequence: Sequence, count: int) -> list[bytes]:
        """The keys of the first ``count`` full blocks, each computed once."""
        size, keys = self._pool.block_size, sequence.block_keys
        for index in range(len(keys), count):
            parent = keys[-1] if keys else _seed(sequence)
            tokens = array("q", sequence.token_ids[index * size : (index + 1) * size])
            keys.append(sha256(parent + tokens.tobytes()).digest())
        return keys[:count]


def _seed(sequence: Sequence) -> bytes:
    """What keys and values depend on beside the tokens, and who may share them."""
    engram = sequence.request.engram
    memory = (sequence.version.id, engram.gate_scale) if sequence.uses_memory else None
    return sha256(repr((memory, sequence.request.isolation)).encode()).digest()
