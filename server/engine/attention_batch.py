"""AttentionBatch: one step's attention over the KV cache.

Writes the step's keys and values, then answers the decoding sequences with one masked call over
their gathered blocks and every prefill with a call of its own. Masks are built once per step and
window, not per layer. Knows positions and blocks, not requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from server.engine.attention import AttentionOptions
from server.engine.attention_math import attend_one_each, attend_stretch, window_mask
from server.engine.kv_cache import KVCache

Masks = dict[int | None, Tensor]


@dataclass(frozen=True, slots=True)
class DecodePart:
    """Sequences with one token each.

    Attributes:
        blocks: their block tables, padded with block 0 to one width: int64 [sequences * width].
        lengths: keys of each sequence, this step's included: int64 [sequences].
    """

    blocks: Tensor
    lengths: Tensor
    masks: Masks = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Sequences, which have one token each."""
        return self.lengths.shape[0]

    @property
    def width(self) -> int:
        """Blocks of each sequence."""
        return self.blocks.shape[0] // self.lengths.shape[0]

    def mask(self, window: int | None, num_keys: int, dtype: torch.dtype) -> Tensor:
        """Which keys each sequence may see: [sequences, 1, 1, keys] of 0 and -inf."""
        if window not in self.masks:
            places = torch.arange(num_keys, device=self.lengths.device)
            lengths = self.lengths.unsqueeze(1)
            hidden = places >= lengths
            if window is not None:
                hidden |= places < lengths - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self.masks[window] = mask.masked_fill_(hidden, float("-inf"))[:, None, None, :]
        return self.masks[window]


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """A stretch of one sequence.

    Attributes:
        start: its first row in the packed step.
        num_tokens: its length.
        num_earlier: keys of the sequence that are in the cache already.
        blocks: the blocks that hold earlier and new keys: int64 [n].
    """

    start: int
    num_tokens: int
    num_earlier: int
    blocks: Tensor
    masks: Masks = field(default_factory=dict)

    @property
    def num_keys(self) -> int:
        """Keys that the last token sees."""
        return self.num_earlier + self.num_tokens

    def mask(self, window: int | None, query: Tensor) -> Tensor | None:
        """[tokens, keys] of 0 and -inf; None where plain causal attention is right."""
        if window is not None and window >= self.num_keys:
            window = None
        if window is None and self.num_earlier == 0:
            return None
        if window not in self.masks:
            self.masks[window] = window_mask(self.num_tokens, self.num_keys, window, query)
        return self.masks[window]


class AttentionBatch:
    """What travels through a forward as `engram_batch`; see `attention.AttentionStep`.

    Attributes:
        slots, decode, cache, prefills: as given.
        native: what native layers made of it; None before.
    """

    def __init__(
        self,
        cache: KVCache,
        slots: Tensor,  # int64 [tokens]: where the step's keys and values go
        decode: DecodePart | None,  # the first rows of the step
        prefills: list[PrefillPart],
    ) -> None:
        self.slots, self.decode = slots, decode
        self.cache, self.prefills = cache, prefills
        self.native: Any = None  # the step as compiled kernels read it, made when they first do

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
    ) -> Tensor:
        """See `attention.AttentionStep.attend`."""
        self.cache.write(layer, self.slots, key.transpose(0, 1), value.transpose(0, 1))
        parts: list[Tensor] = []
        if self.decode is not None:
            parts.append(self._attend_decode(self.decode, layer, query, options))
        for part in self.prefills:
            parts.append(self._attend_prefill(part, layer, (query, key, value), options))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_decode(
        self, part: DecodePart, layer: int, query: Tensor, options: AttentionOptions
    ) -> Tensor:
        key, value = self.cache.gather(layer, part.blocks, part.num_tokens)
        mask = part.mask(options.sliding_window, key.shape[1], query.dtype)
        tokens = query[:, : part.num_tokens].transpose(0, 1)
        return attend_one_each(tokens, key, value, mask, options)

    def _attend_prefill(
        self,
        part: PrefillPart,
        layer: int,
        packed: tuple[Tensor, Tensor, Tensor],
        options: AttentionOptions,
    ) -> Tensor:
        rows = slice(part.start, part.start + part.num_tokens)
        query, key, value = (tensor[:, rows] for tensor in packed)
        if part.num_earlier:
            all_keys, all_values = self.cache.gather(layer, part.blocks, 1)
            key = all_keys[0, : part.num_keys].transpose(0, 1)
            value = all_values[0, : part.num_keys].transpose(0, 1)
        return attend_stretch(query, key, value, part.mask(options.sliding_window, query), options)
