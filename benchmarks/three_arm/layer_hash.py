"""Arm 0's hashing: every layer computes the row ids of all layers anew, order by order.

The same ids as `NgramHasher` gives (engram-spec section 4; the public demo hashes like this).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engram_core.hashing import NgramHasher

Int64Array = npt.NDArray[np.int64]


class LayerHash:
    """Row ids of all layers, order by order and head by head, as every layer computes them anew."""

    def __init__(self, hasher: NgramHasher) -> None:
        self._classes, self._pad = hasher.class_ids, hasher.pad_class
        self._layout = hasher.layout

    def __call__(self, token_ids: Int64Array, layer: int) -> Int64Array:
        """int64 ``[tokens, columns]`` of one layer."""
        return {each: self._rows(token_ids, each) for each in self._layout.rows}[layer]

    def _rows(self, token_ids: Int64Array, layer: int) -> Int64Array:
        layout, classes = self._layout, self._classes[token_ids]
        shifted = [self._shift(classes, back) for back in range(layout.config.max_order)]
        columns = []
        for order, primes in zip(layout.config.orders, layout.primes[layer], strict=True):
            mixed = shifted[0] * layout.multipliers[layer][0]
            for back in range(1, order):
                mixed = np.bitwise_xor(mixed, shifted[back] * layout.multipliers[layer][back])
            columns += [mixed % prime for prime in primes]
        return np.stack(columns, axis=1) + np.array(layout.offsets[layer], dtype=np.int64)

    def _shift(self, classes: Int64Array, back: int) -> Int64Array:
        if back == 0:
            return classes
        return np.pad(classes, (back, 0), constant_values=self._pad)[: len(classes)]
