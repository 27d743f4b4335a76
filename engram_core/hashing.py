"""NgramHasher: raw token ids (and their history) -> rows of each layer's table.

Works on the CPU in numpy: addresses depend on tokens alone, so they are computed before and beside
the accelerator's work. Knows no tables and no tensors. (engram-spec section 4; the demo's
NgramHashMapping; the barrier rule is DeepSeek-V4.1's.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram_core import compiled
from engram_core.compression import ClassIds, compress
from engram_core.errors import ConfigError, IdRangeError
from engram_core.layout import HashLayout
from engram_core.served_orders import ServedOrders

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class NgramHasher:
    """Hashes tokens into absolute row ids.

    Args:
        layout: the hash constants.
        class_ids: the class of every token id.
        orders: n-gram orders to hash; None hashes every order of the layout.

    Attributes:
        layout: as given. served: the orders that are hashed.
        class_ids: int64 ``[num_ids]``, the class of every token id.
        pad_class: class that stands before a sequence's start and behind a barrier.
    """

    def __init__(
        self,
        layout: HashLayout,
        class_ids: npt.ArrayLike,
        orders: Sequence[int] | None = None,
    ) -> None:
        self.layout = layout
        self.served = ServedOrders.of(layout.config, orders)
        self.class_ids: ClassIds = np.ascontiguousarray(class_ids, dtype=np.int64)
        pad_id = layout.config.pad_id
        if pad_id >= len(self.class_ids) and not layout.config.keeps_unmapped_ids:
            raise IdRangeError(
                f"pad_id {pad_id} is out of range; accepted: below {len(self.class_ids)}"
            )
        self.pad_class = int(self._compress([pad_id])[0])
        self._constants = {each: _LayerConstants(self.served, layout, each) for each in layout.rows}

    def _compress(self, token_ids: npt.ArrayLike) -> ClassIds:
        keep = self.layout.config.keeps_unmapped_ids
        return compress(self.class_ids, token_ids, keep_unmapped=keep)

    def row_ids(
        self,
        token_ids: Any,
        layer: int,
        history: Any | None = None,
        barrier: Any | None = None,
    ) -> Int64Array:
        """Absolute rows that each token of one sequence reads in `layer`.

        Args:
            token_ids: raw ids ``[tokens]``.
            layer: an Engram layer id.
            history: raw ids that come before `token_ids`, oldest first; only the last N-1 matter.
            barrier: bool ``[history + tokens]``; True where an n-gram must not look across.

        Returns:
            int64 ``[tokens, columns]``, columns of the served orders, order-major, offsets added.

        Raises:
            IdRangeError: an id has no class. ConfigError: unknown layer or a wrong shape.
        """
        return self.window_rows(self.windows(token_ids, history, barrier), layer)

    def windows(
        self, token_ids: Any, history: Any | None = None, barrier: Any | None = None
    ) -> Int64Array:
        """Classes that each token's n-grams see: int64 ``[tokens, N]``.

        Column k holds the class k tokens back, so column 0 is the token itself. All layers share
        the windows; those of several sequences may be concatenated before `window_rows`.
        """
        ids = _flat_ids("token_ids", token_ids)
        past = _flat_ids("history", () if history is None else history)
        blocked = _barrier(barrier, len(past) + len(ids))
        reach = self.layout.config.max_order - 1
        kept = past[len(past) - min(reach, len(past)) :]
        classes = np.full(reach + len(ids), self.pad_class, dtype=np.int64)
        classes[reach - len(kept) :] = self._compress(np.concatenate([kept, ids]))
        slots = reach + np.arange(len(ids))[:, None] - np.arange(reach + 1)  # [tokens, N]
        if blocked is None:
            windows: Int64Array = classes[slots]
            return windows
        stop = np.ones(len(classes), dtype=np.bool_)  # the sequence's start stops like a barrier
        stop[reach - len(kept) :] = blocked[len(past) - len(kept) :]
        latched = np.logical_or.accumulate(stop[slots], axis=1)
        return np.where(latched, self.pad_class, classes[slots])

    def ragged_windows(
        self,
        token_ids: Any,
        lengths: Sequence[int],
        histories: Sequence[Any] | None = None,
        barriers: Sequence[Any | None] | None = None,
    ) -> Int64Array:
        """`windows` of several sequences packed one behind the other: int64 ``[tokens, N]``.

        Args:
            token_ids: raw ids of all sequences ``[tokens]``.
            lengths: tokens of each sequence; they add up to ``tokens``.
            histories: per sequence, what came before it (default: nothing).
            barriers: per sequence, a mask over its history and tokens, or None.
        """
        ids = _flat_ids("token_ids", token_ids)
        if sum(lengths) != len(ids):
            raise ConfigError(f"lengths add up to {sum(lengths)}; accepted: {len(ids)}, the tokens")
        parts = np.split(ids, np.cumsum(lengths)[:-1])
        histories = histories or [()] * len(parts)
        barriers = barriers or [None] * len(parts)
        return np.concatenate(
            [self.windows(*each) for each in zip(parts, histories, barriers, strict=True)]
        )

    def step_windows(self, histories: Sequence[Sequence[int]]) -> Int64Array:
        """`windows` of the newest token of each history: int64 ``[histories, N]``.

        Args:
            histories: raw ids of each sequence, the newest last; only the last N matter.
        """
        reach = self.layout.config.max_order
        # a pad token stands for what lies before the start: it has the pad class
        padding = [self.layout.config.pad_id] * reach
        ids: list[int] = []
        for history in histories:
            ids += [*history[: -reach - 1 : -1], *padding[len(history) :]]
        return self._compress(ids).reshape(len(histories), reach)

    def any_rows(self, layer: int, num_tokens: int, seed: int = 0) -> Int64Array:
        """Different rows of `layer` that random tokens read, for measurements: int64 ``[n]``."""
        shape = (num_tokens, self.layout.config.max_order)
        windows = np.random.default_rng(seed).integers(0, self.layout.compressed_size, shape)
        return np.unique(self.window_rows(windows, layer))

    def window_rows(self, windows: Int64Array, layer: int) -> Int64Array:
        """Absolute rows of ready-made windows: int64 ``[tokens, N]`` -> ``[tokens, columns]``."""
        constants = self._constants.get(layer)
        if constants is None:
            raise ConfigError(f"layer {layer} has no Engram; accepted: {sorted(self._constants)}")
        kernels = compiled.kernels()
        if kernels is not None:
            try:
                return constants.window_rows(kernels, windows)
            except TypeError:  # windows in another memory order than the usual one
                pass
        mixed = constants.mix(windows)
        hashed = np.repeat(mixed, self.layout.config.num_heads, axis=1)
        hashed %= constants.primes  # numpy's % on integers is the floor modulo
        hashed += constants.offsets
        return hashed


class _LayerConstants:
    """One layer's constants of the served orders as arrays, ready to broadcast over tokens."""

    def __init__(self, served: ServedOrders, layout: HashLayout, layer: int) -> None:
        places, shape = list(served.places), (len(layout.config.orders), -1)

        def of_columns(values: Sequence[int]) -> Int64Array:
            whole = np.array(values, dtype=np.int64).reshape(shape)  # [orders, heads]
            return whole[places].reshape(-1)

        multipliers = np.array(layout.window_multipliers(layer), dtype=np.int64)
        self.multipliers = multipliers[places]  # [orders, N]
        self.primes = of_columns(layout.column_primes(layer))  # [columns]
        self.offsets = of_columns(layout.offsets[layer])  # [columns]

    def mix(self, windows: Int64Array) -> Int64Array:
        """The mixed number of every n-gram: int64 ``[tokens, N]`` -> ``[tokens, orders]``."""
        mixed = np.zeros((len(windows), len(self.multipliers)), dtype=np.int64)
        for slot in range(windows.shape[1]):
            mixed ^= windows[:, slot, None] * self.multipliers[:, slot]
        return mixed

    def window_rows(self, kernels: compiled.Kernels, windows: Int64Array) -> Int64Array:
        """`NgramHasher.window_rows` in one compiled call."""
        out = np.empty((len(windows), len(self.primes)), dtype=np.int64)
        kernels.window_rows(windows, self.multipliers, self.primes, self.offsets, out)
        return out


def _flat_ids(name: str, values: Any) -> Int64Array:
    ids = np.asarray(values, dtype=np.int64)
    if ids.ndim != 1:
        raise ConfigError(f"{name} has shape {ids.shape}; accepted: one dimension")
    return ids


def _barrier(barrier: Any | None, length: int) -> BoolArray | None:
    if barrier is None:
        return None
    blocked = np.asarray(barrier, dtype=np.bool_)
    if blocked.shape != (length,):
        raise ConfigError(
            f"barrier has shape {blocked.shape}; accepted: ({length},), history and tokens together"
        )
    return blocked
