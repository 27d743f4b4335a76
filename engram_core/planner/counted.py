"""CountedAccess: how unevenly a text's own n-grams read the rows, counted by hashing it.

Rows are ranked by their counts in three quarters of the text and read by the last one, each
quarter in turn: counted in the text that made the ranking, a row that is read once would look
like a hit. Knows token ids; reads no files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.planner.shape import MemoryShape, hash_config
from engram_core.planner.validation import require

FOLDS = 4
MIN_TOKENS = 1000
MAX_TOKENS = 2**23  # about a gigabyte of row ids and their order while counting
_CHUNK_TOKENS = 65_536

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class CountedAccess:
    """Rows read as a text reads them.

    All heads of an order read alike and so do all layers: one head of each order is hashed and
    stands for the others.

    Args:
        shape: the tables; their hash constants are built for `class_ids`.
        token_ids: raw ids ``[tokens]``, in the order in which they were read.
        class_ids: int64 ``[num_ids]``, the class of every token id (`TokenCompressor`).

    Raises:
        ConfigError: too few or too many tokens. IdRangeError: an id has no class.
    """

    def __init__(self, shape: MemoryShape, token_ids: Any, class_ids: Int64Array) -> None:
        ids = np.asarray(token_ids)
        ok = ids.ndim == 1 and MIN_TOKENS <= len(ids) <= MAX_TOKENS
        accepted = f"one list of {MIN_TOKENS} to {MAX_TOKENS} ids"
        require(ok, "number of tokens", ids.size if ids.ndim == 1 else ids.shape, accepted)
        self.num_tokens = len(ids)
        self._scale = shape.rows_per_token / len(shape.orders)  # columns that a counted one is for
        self._total_rows = shape.total_rows
        hits = _held_out_hits(_hashed_rows(shape, ids, class_ids))
        self._shares = np.concatenate([[0.0], hits])  # [known rows + 1]

    @property
    def unseen(self) -> float:
        """Share of reads of rows that the other three quarters of the text never read."""
        return 1.0 - float(self._shares[-1])

    def share(self, rows: float) -> float:
        """See `AccessPattern.share`. Rows that the text does not rank are taken to be alike."""
        if rows >= self._total_rows:
            return 1.0
        known = len(self._shares) - 1
        counted = max(rows, 0.0) / self._scale
        if counted <= known:
            return float(np.interp(counted, np.arange(known + 1), self._shares))
        rest = self._total_rows / self._scale - known
        return min(1.0, float(self._shares[-1]) + self.unseen * (counted - known) / rest)

    def to_dict(self) -> dict[str, Any]:
        """The number of tokens and the part of their reads that nothing before predicts."""
        return {"pattern": "counted", "tokens": self.num_tokens, "unseen_share": self.unseen}


def _hashed_rows(shape: MemoryShape, ids: Int64Array, class_ids: Int64Array) -> Int64Array:
    """Rows of one head per order: int64 ``[tokens, orders]``, distinct between orders."""
    rows_per_head = shape.total_rows // shape.rows_per_token
    config = hash_config(max(2, rows_per_head), (0,), shape.orders, 1)
    layout = HashLayout.build(config, int(np.max(class_ids)) + 1)
    hasher, reach = NgramHasher(layout, class_ids), config.max_order - 1
    starts = range(0, len(ids), _CHUNK_TOKENS)
    return np.concatenate(
        [
            hasher.row_ids(
                ids[start : start + _CHUNK_TOKENS], 0, ids[max(0, start - reach) : start]
            )
            for start in starts
        ]
    )


def _held_out_hits(rows: Int64Array) -> FloatArray:
    """Share of reads that fall on the hottest 1, 2, 3 ... rows that the other folds rank."""
    fold_of_read = np.repeat(np.arange(len(rows)) * FOLDS // len(rows), rows.shape[1])
    known, places = np.unique(rows.reshape(-1), return_inverse=True)
    totals = np.bincount(places, minlength=len(known))
    hits, most_ranked = np.zeros(len(known)), 0
    for fold in range(FOLDS):
        held_out = np.bincount(places[fold_of_read == fold], minlength=len(known))
        hottest = np.argsort(held_out - totals, kind="stable")  # most often in the other folds
        is_ranked = totals[hottest] > held_out[hottest]
        hits += np.cumsum(np.where(is_ranked, held_out[hottest], 0))
        most_ranked = max(most_ranked, int(np.count_nonzero(is_ranked)))
    return hits[:most_ranked] / rows.size
