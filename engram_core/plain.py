"""The memory of a plain `model(...)` or `generate(...)`: rows are looked up in the layer.

No engine, no prefetch: this is the reference that the engine's output is compared with, and what
training and evaluation run on. Sequences of a batch must have equal lengths (no padding).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engram_core.conv_state import ConvState
from engram_core.errors import StateError, UnsupportedModelError
from engram_core.module import EngramOutput
from engram_core.version import MemoryVersion


class PlainMemory:
    """Keeps the token history and convolution states of the running `generate` call."""

    def __init__(self, version: MemoryVersion) -> None:
        self._version = version
        self._history = torch.empty(0, 0, dtype=torch.int64)  # [batch, tokens so far]
        self._states: list[dict[int, ConvState | None]] = []

    def step(self, input_ids: torch.Tensor, kwargs: Mapping[str, Any]) -> PlainStep:
        """The step of one forward over `input_ids` ``[batch, tokens]``.

        Raises:
            UnsupportedModelError: the batch is padded.
            StateError: the forward continues a cache that this memory did not see filled.
        """
        mask = kwargs.get("attention_mask")
        if mask is not None and mask.ndim == 2 and not bool(mask.all()):
            raise UnsupportedModelError(
                "a padded batch would hash padding; pass sequences of equal length"
            )
        self._rewind(_cached_tokens(kwargs), batch=len(input_ids))
        past = self._history
        self._history = torch.cat([past, input_ids.cpu()], dim=1)
        return PlainStep(self._version, input_ids.cpu().numpy(), past.numpy(), self._states)

    def _rewind(self, length: int, batch: int) -> None:
        """Forget everything from position `length` on; 0 starts afresh."""
        if length == 0:
            self._history = torch.empty(batch, 0, dtype=torch.int64)
            self._states = [self._new_states() for _ in range(batch)]
        if self._history.shape[0] != batch or self._history.shape[1] < length:
            raise StateError(
                f"the cache holds {length} tokens of {batch} sequence(s), the memory saw "
                f"{self._history.shape[1]} of {self._history.shape[0]}"
            )
        self._history = self._history[:, :length]
        for states in self._states:
            for state in filter(None, states.values()):
                state.truncate(length)

    def _new_states(self) -> dict[int, ConvState | None]:
        config = self._version.config
        if not config.conv_history:
            return dict.fromkeys(config.layer_ids)
        return {
            layer: ConvState(config.conv_history, config.conv_channels)
            for layer in config.layer_ids
        }


@dataclass(frozen=True)
class PlainStep:
    """One forward of `PlainMemory`."""

    version: MemoryVersion
    input_ids: np.ndarray[Any, Any]  # [batch, tokens]
    history: np.ndarray[Any, Any]  # [batch, earlier tokens]
    states: list[dict[int, ConvState | None]]

    def is_silent(self, layer: int) -> bool:
        """Never known before `apply` has looked."""
        return False

    def apply(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden state ``[tokens, 1, D]`` with the memory of `layer` added."""
        batch, length = self.input_ids.shape
        hasher, tier = self.version.hasher, self.version.tiers[layer]
        windows = hasher.ragged_windows(
            self.input_ids.reshape(-1), [length] * batch, list(self.history)
        )
        rows = hasher.window_rows(windows, layer).reshape(-1)
        embeddings = torch.empty(len(rows), tier.row_dim, dtype=torch.bfloat16)
        tier.gather(rows, embeddings)
        output: EngramOutput = self.version.modules[layer](
            hidden,
            self.version.served.widen(embeddings.view(batch * length, -1)).to(hidden.device),
            lengths=[length] * batch,
            conv_states=[states[layer] for states in self.states],
        )
        return output.hidden


def _cached_tokens(kwargs: Mapping[str, Any]) -> int:
    # transformers renamed the argument: which name reaches a forward depends on its release
    caches = (kwargs.get(name) for name in ("cache", "past_key_values"))
    return next((int(cache.get_seq_length()) for cache in caches if cache is not None), 0)
