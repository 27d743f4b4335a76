"""Suffixes: what the backbone computed for every example, kept flat and dealt out in batches.

A suffix is the part of an example that reads written rows, from its subject's last token on; its
prefix is all that stands before. Knows tensors and lengths; runs no layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engram_core.retrofit.examples import Example


@dataclass
class SuffixCache:
    """What the backbone computed for all examples, flat: rows of one example are consecutive.

    Attributes:
        examples: the examples, in order.
        hidden: ``[suffix positions, D]`` input of the first Engram layer.
        plain: ``[suffix positions, D]`` the backbone's final hidden state (after the last norm).
        rotary: cosines and sines ``[2, suffix positions, rotary dim]``.
        prefix: ``[prefix positions, upper layers, 2, kv heads, head dim]`` keys and values.
    """

    examples: Sequence[Example]
    hidden: torch.Tensor
    plain: torch.Tensor
    rotary: torch.Tensor
    prefix: torch.Tensor

    def __post_init__(self) -> None:
        self._suffix_starts = _starts([e.suffix_length for e in self.examples])
        self._prefix_starts = _starts([e.key_last for e in self.examples])

    def batch(self, chosen: Sequence[int]) -> SuffixBatch:
        """The suffixes of the chosen examples, packed."""
        suffix = [self.examples[i].suffix_length for i in chosen]
        prefix = [self.examples[i].key_last for i in chosen]
        rows = torch.cat(
            [_span(self._suffix_starts[i], n) for i, n in zip(chosen, suffix, strict=True)]
        )
        width = max(prefix)
        padded = torch.zeros(len(chosen), width, dtype=torch.long)
        for row, (i, n) in enumerate(zip(chosen, prefix, strict=True)):
            padded[row, :n] = _span(self._prefix_starts[i], n)
        return SuffixBatch(
            lengths=suffix,
            hidden=self.hidden[rows],
            plain=self.plain[rows],
            rotary=self.rotary[:, rows],
            prefix=self.prefix[padded].permute(2, 3, 0, 4, 1, 5).contiguous(),
            mask=_suffix_mask(prefix, suffix),
        )


@dataclass
class SuffixBatch:
    """Packed suffixes (T positions of B examples, the longest S) and their prefixes (longest P).

    Attributes:
        lengths: suffix positions of each example; they add up to T.
        hidden: ``[T, D]``. plain: ``[T, D]``. rotary: ``[2, T, rotary dim]``.
        prefix: ``[upper layers, 2, B, kv heads, P, head dim]``.
        mask: bool ``[B, 1, S, P+S]``, True where attention may look.
    """

    lengths: Sequence[int]
    hidden: torch.Tensor
    plain: torch.Tensor
    rotary: torch.Tensor
    prefix: torch.Tensor
    mask: torch.Tensor

    def __post_init__(self) -> None:
        longest = max(self.lengths)
        self.padded_index = torch.cat(
            [torch.arange(n) + row * longest for row, n in enumerate(self.lengths)]
        )  # [T] position of each token in the padded [B*S]

    def pad(self, packed: torch.Tensor) -> torch.Tensor:
        """``[1, heads, T, dim]`` -> ``[B, heads, S, dim]``."""
        heads, _, dim = packed.shape[1:]
        batch, longest = len(self.lengths), max(self.lengths)
        padded = packed.new_zeros(batch * longest, heads, dim)
        padded = padded.index_copy(0, self.padded_index, packed[0].transpose(0, 1))
        return padded.view(batch, longest, heads, dim).transpose(1, 2)

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """``[B, heads, S, dim]`` -> ``[1, T, heads, dim]``."""
        flat = padded.transpose(1, 2).flatten(0, 1)  # [B*S, heads, dim]
        return flat[self.padded_index][None]


def _suffix_mask(prefix: Sequence[int], suffix: Sequence[int]) -> torch.Tensor:
    """Real prefix positions, and suffix positions not after one's own: bool ``[B, 1, S, P+S]``."""
    width, longest = max(prefix), max(suffix)
    real = torch.arange(width) < torch.tensor(prefix)[:, None]  # [B, P]
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    batch = len(prefix)
    return torch.cat(
        [real[:, None].expand(-1, longest, -1), causal[None].expand(batch, -1, -1)], dim=2
    )[:, None]


def _starts(lengths: Sequence[int]) -> list[int]:
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


def _span(start: int, length: int) -> torch.Tensor:
    return torch.arange(start, start + length)
