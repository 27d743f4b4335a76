"""Builds a step's packed tensors from the scheduler's batch.

One buffer per input, allocated once and refilled; decoding sequences cost a few scalar writes
each, prefills one array copy each. Knows sequences and blocks, not the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from server.engine.attention_batch import AttentionBatch, DecodePart, PrefillPart
from server.engine.batch import Batch, Span
from server.engine.kv_cache import KVCache
from server.engine.limits import EngineLimits

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What one forward takes.

    Attributes:
        input_ids: int64 [1, tokens]; position_ids: the same shape.
        logit_rows: int64 [rows]: packed tokens whose logits are wanted.
        rows: for each span, its part of ``logit_rows``.
        attention: the step's `engram_batch`.
    """

    input_ids: Tensor
    position_ids: Tensor
    logit_rows: Tensor
    rows: tuple[slice, ...]
    attention: AttentionBatch


class InputBuilder:
    """Refillable buffers for `StepInputs`; what it returned before is overwritten by `build`."""

    def __init__(self, limits: EngineLimits, cache: KVCache, device: torch.device) -> None:
        self._cache = cache
        self._device = device
        self._block_size = cache.block_size
        max_blocks = -(-(limits.max_model_len + 1) // cache.block_size)
        self._ids = np.zeros(limits.max_num_batched_tokens, dtype=np.int64)
        self._positions = np.zeros(limits.max_num_batched_tokens, dtype=np.int64)
        self._slots = np.zeros(limits.max_num_batched_tokens, dtype=np.int64)
        self._tables = np.zeros((limits.max_num_seqs, max_blocks), dtype=np.int64)

    def build(self, batch: Batch) -> StepInputs:
        """Lay the batch out: decoding sequences first, then each prefill's stretch."""
        decode = self._fill_decodes(batch.decodes)
        prefills: list[PrefillPart] = []
        row = batch.num_decodes
        for span in batch.prefills:
            prefills.append(self._fill_prefill(span, row))
            row += span.num_tokens
        slots = self._tensor(self._slots[:row])
        logit_rows, rows = _logit_rows(batch)
        return StepInputs(
            self._tensor(self._ids[:row]).unsqueeze(0),
            self._tensor(self._positions[:row]).unsqueeze(0),
            self._tensor(logit_rows),
            rows,
            AttentionBatch(self._cache, slots, decode, prefills),
        )

    def _tensor(self, array: Int64Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _fill_decodes(self, spans: tuple[Span, ...]) -> DecodePart | None:
        if not spans:
            return None
        count = len(spans)
        for row, span in enumerate(spans):
            table = span.sequence.block_table
            self._ids[row] = span.sequence.token_ids[span.start]
            self._positions[row] = span.start
            self._tables[row, : len(table)] = table
            self._tables[row, len(table) :] = 0
        positions = self._positions[:count]
        block, place = np.divmod(positions, self._block_size)
        self._slots[:count] = self._tables[np.arange(count), block] * self._block_size + place
        width = int(block.max()) + 1
        blocks = np.ascontiguousarray(self._tables[:count, :width]).reshape(-1)
        return DecodePart(self._tensor(blocks), self._tensor(positions + 1))

    def _fill_prefill(self, span: Span, row: int) -> PrefillPart:
        stop = row + span.num_tokens
        self._ids[row:stop] = span.sequence.token_ids[span.start : span.stop]
        positions = np.arange(span.start, span.stop)
        self._positions[row:stop] = positions
        num_blocks = -(-span.stop // self._block_size)
        blocks = np.array(span.sequence.block_table[:num_blocks], dtype=np.int64)
        block, place = np.divmod(positions, self._block_size)
        self._slots[row:stop] = blocks[block] * self._block_size + place
        return PrefillPart(row, span.num_tokens, span.start, self._tensor(blocks))


def _logit_rows(batch: Batch) -> tuple[Int64Array, tuple[slice, ...]]:
    """The rows that meet the head, and each span's share of them."""
    wanted: list[int] = []
    rows: list[slice] = []
    start = 0
    for span in batch.spans:
        stop, before = start + span.num_tokens, len(wanted)
        if span.wants_prompt_logprobs:
            wanted.extend(range(start, stop))
        elif span.samples:
            wanted.append(stop - 1)
        rows.append(slice(before, len(wanted)))
        start = stop
    return np.array(wanted, dtype=np.int64), tuple(rows)
