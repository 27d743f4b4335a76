"""NativeStep: a step's sequences as the attention kernel reads them, and how far the step has come.

Made once per step from the batch that travels through the forward. Knows no layers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from server.engine.attention_batch import AttentionBatch
from server.engine.native.records import SPAN

Int64Array = npt.NDArray[np.int64]


class NativeStep:
    """Spans, their units of work, and the step's slots.

    Args:
        batch: the step. tile_tokens: tokens of a prompt that attend together.

    Attributes:
        batch: as given: it owns the block tables.
        spans: records of `records.SPAN`, one for each sequence.
        units: int64 [units, 3]: a span, its first token, how many; the longest ones first.
        slots: int64 [tokens].
        next_layer: the first layer that is not computed yet.
    """

    def __init__(self, batch: AttentionBatch, tile_tokens: int) -> None:
        self.batch = batch
        self.spans = _spans(batch)
        self.units = _units(self.spans, tile_tokens)
        self.slots: Int64Array = batch.slots.numpy()
        self.next_layer = 0


def _spans(batch: AttentionBatch) -> npt.NDArray[np.void]:
    decode, prefills = batch.decode, batch.prefills
    num_decodes = 0 if decode is None else decode.num_tokens
    spans = np.zeros(num_decodes + len(prefills), dtype=SPAN)
    if decode is not None:
        rows = np.arange(num_decodes)
        head = spans[:num_decodes]
        head["row"], head["num_tokens"] = rows, 1
        head["position"] = decode.lengths.numpy() - 1
        head["blocks"] = decode.blocks.data_ptr() + rows * (8 * decode.width)
    for span, part in zip(spans[num_decodes:], prefills, strict=True):
        span["row"], span["num_tokens"] = part.start, part.num_tokens
        span["position"], span["blocks"] = part.num_earlier, part.blocks.data_ptr()
    return spans


def _units(spans: npt.NDArray[np.void], size: int) -> Int64Array:
    if (spans["num_tokens"] == 1).all():
        units = np.zeros((len(spans), 3), dtype=np.int64)
        units[:, 0], units[:, 2] = np.arange(len(spans)), 1
        return units
    found = [
        (number, first, min(size, int(span["num_tokens"]) - first))
        for number, span in enumerate(spans)
        for first in range(0, int(span["num_tokens"]), size)
    ]
    # later tokens see more keys; what takes longest must not come last
    found.sort(key=lambda unit: -(int(spans[unit[0]]["position"]) + unit[1]))
    return np.array(found, dtype=np.int64)
