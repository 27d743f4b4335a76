"""CountedAccess: how unevenly a text's own n-grams read the rows, counted by hashing it.

The text is read through the server's own cache policy, each quarter in turn after the three others:
counted in a text that the cache has seen before, a row that is read once would look like a hit.
Knows token ids; reads no files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engram_core import compiled
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.planner.shape import MemoryShape, hash_config
from engram_core.planner.validation import require
from engram_core.store.hot_policy import HotPolicy

FOLDS = 4
MIN_TOKENS = 1000
MAX_TOKENS = 2**23  # about a gigabyte of row ids and their order while counting
_STEP_TOKENS = (8, 128)  # read at once, as by a batch: few where the cache is small
_CHUNK_TOKENS = 65_536

Int64Array = npt.NDArray[np.int64]


class CountedAccess:
    """Rows read as a text reads them.

    Attributes:
        num_tokens: of the text.
        unseen: share of its reads that no cache can answer: of rows that neither the other three
            quarters nor an earlier token read.

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
        hashed = _hashed_rows(shape, ids, class_ids)
        known, places = np.unique(hashed, return_inverse=True)
        self._known = len(known)
        self._folds = np.array_split(places.reshape(hashed.shape), FOLDS)  # each [tokens, orders]
        self._measured: dict[int, float] = {}
        read_in = sum(np.bincount(f.ravel(), minlength=self._known) > 0 for f in self._folds)
        self.unseen = float(np.count_nonzero(read_in == 1)) / hashed.size
        compiled.load()

    def share(self, rows: float) -> float:
        """See `AccessPattern.share`. Rows that the text does not read are taken to be alike."""
        if rows >= self._total_rows:
            return 1.0
        counted = max(rows, 0.0) / self._scale
        if counted < self._known:
            return self._hit_rate(max(1, int(counted))) * min(1.0, counted)
        rest = self._total_rows / self._scale - self._known
        return min(1.0, 1.0 - self.unseen + self.unseen * (counted - self._known) / rest)

    def _hit_rate(self, slots: int) -> float:
        """Hits of a cache with so many slots for one head of each order, measured."""
        if slots not in self._measured:
            hits = 0
            for fold in range(FOLDS):
                policy = HotPolicy(self._known, slots)
                for before in range(1, FOLDS):
                    _hits(policy, self._folds[(fold + before) % FOLDS])
                hits += _hits(policy, self._folds[fold])
            self._measured[slots] = hits / sum(each.size for each in self._folds)
        return self._measured[slots]

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


def _hits(policy: HotPolicy, rows: Int64Array) -> int:
    """Let a cache read the rows of every token ``[tokens, orders]``; its hits."""
    fewest, most = _STEP_TOKENS
    tokens = max(fewest, min(most, policy.capacity // (8 * rows.shape[1])))
    found = 0
    for start in range(0, len(rows), tokens):
        made = policy.plan(rows[start : start + tokens].reshape(-1), policy.capacity)
        policy.end_reading(made)
        policy.publish(made)
        found += made.num_hits
    return found
