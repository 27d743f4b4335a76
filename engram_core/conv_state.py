"""ConvState: the short convolution's memory of one sequence in one layer.

Vectors are addressed by absolute position, so that rejected drafts, preemption and chunking are
one mechanism: run k tokens, truncate, go on equals never having run them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from engram_core.errors import ConfigError, StateError


class ConvState:
    """The last convolution inputs u of one sequence (engram-spec section 6).

    Args:
        history: vectors that one output looks back on, (K-1)*N.
        channels: width of a vector, G*D.
        max_draft: how many of the newest tokens `truncate` can take back.
        dtype: of the vectors. device: where they live.

    Attributes:
        length: tokens appended so far, truncated ones taken off.
    """

    def __init__(
        self,
        history: int,
        channels: int,
        *,
        max_draft: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if history < 0 or channels < 1 or max_draft < 0:
            raise ConfigError(
                f"history {history}, channels {channels}, max_draft {max_draft}; "
                "accepted: history and max_draft >= 0, channels >= 1"
            )
        self.length = 0
        self._history = history
        self._max_draft = max_draft
        # zeros stand before the sequence's start, as in the demo's zero padding
        self._tail = torch.zeros(history, channels, dtype=dtype, device=device)
        self._watched: Sequence[int] = ()
        self._snapshots: dict[int, ConvState] = {}

    @property
    def history(self) -> torch.Tensor:
        """The vectors before position `length`: ``[(K-1)*N, G*D]``, oldest first."""
        return self._tail[len(self._tail) - self._history :]

    def append(self, u: torch.Tensor) -> None:
        """Take over the inputs of the next tokens, ``[tokens, G*D]``."""
        before, self.length = self.length, self.length + len(u)
        keep = self._history + min(self._max_draft, self.length)
        joined = torch.cat([self._tail, u.to(self._tail.dtype)])
        for length in self._watched:
            if before < length <= self.length:
                self._snapshots[length] = self._at(length, joined)
        self._tail = joined[max(0, len(joined) - keep) :].clone()

    def watch(self, lengths: Sequence[int]) -> None:
        """Keep a copy of the state as it was at these lengths, once `append` reaches them."""
        self._watched, self._snapshots = lengths, {}

    def take_snapshots(self) -> dict[int, ConvState]:
        """The copies made since `watch`, by length; another sequence can go on from them."""
        taken = self._snapshots
        self.watch(())
        return taken

    def _at(self, length: int, joined: torch.Tensor) -> ConvState:
        """The state at an earlier length; ``joined`` ends with the vectors up to now."""
        stop = len(joined) - (self.length - length)
        earlier = copy.copy(self)
        earlier.length = length
        earlier._tail = joined[stop - self._history : stop].clone()
        earlier.watch(())
        return earlier

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on.

        Raises:
            StateError: the state does not reach back that far, or `length` lies ahead.
        """
        dropped = self.length - length
        if length < 0 or dropped < 0 or dropped > len(self._tail) - self._history:
            raise StateError(
                f"cannot truncate to {length} tokens: this state holds "
                f"{self.length - (len(self._tail) - self._history)} to {self.length}"
            )
        self._tail = self._tail[: len(self._tail) - dropped]
        self.length = length
