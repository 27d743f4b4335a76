"""Counts what a stream of tokens does to a memory's rows: n-grams, rows touched, rows shared.

Exact, in memory that the stream's length does not change: n-grams are met in parts, one pass over
the stream each, and a row is remembered as untouched, of one n-gram, or of several. Knows hashing
and primes; reads no rows and no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import expm1, log1p
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engram_core.hashing import NgramHasher

MAX_NGRAMS = 2**24  # of a part, eight bytes each while it is counted
_SHARED = 2  # a row of several n-grams; how many does not matter

Int64Array = npt.NDArray[np.int64]
Uint64Array = npt.NDArray[np.uint64]
_STEP, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class TokenIds(Protocol):
    """Token ids of any number, read front to back as often as asked."""

    def __len__(self) -> int:
        """How many there are."""

    def chunks(self) -> Iterator[Int64Array]:
        """All of them in order: int64 ``[n]`` each."""


@dataclass(frozen=True, slots=True)
class OrderLoad:
    """What the n-grams of one order do to their heads in one layer.

    Attributes:
        layer, order: which.
        lookups: rows read, one for every token and head.
        distinct_ngrams: different n-grams of token classes.
        distinct_rows: rows of a head that were read at least once, mean over heads.
        load: distinct n-grams for each row of a head, mean over heads.
        collision_rate: share of the distinct n-grams whose row is another distinct n-gram's as
            well, mean over heads.
        uniform_collision_rate: the same if every n-gram drew its row with equal chances.
    """

    layer: int
    order: int
    lookups: int
    distinct_ngrams: int
    distinct_rows: float
    load: float
    collision_rate: float
    uniform_collision_rate: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def count_collisions(
    hasher: NgramHasher, tokens: TokenIds, max_ngrams: int = MAX_NGRAMS
) -> tuple[OrderLoad, ...]:
    """The load of every layer and order by `tokens`, which are taken for one sequence.

    Args:
        hasher: of the memory.
        tokens: raw ids; the sequence's start is filled up as it is when it is served.
        max_ngrams: that are held at once; more tokens than that take several passes.

    Raises:
        IdRangeError: an id has no class.
    """
    config = hasher.layout.config
    by_order = [
        _count_order(hasher, tokens, place, max_ngrams) for place in range(len(config.orders))
    ]
    return tuple(loads[layer] for layer in config.layer_ids for loads in by_order)


def _count_order(
    hasher: NgramHasher, tokens: TokenIds, place: int, max_ngrams: int
) -> dict[int, OrderLoad]:
    layout = hasher.layout
    layers = layout.config.layer_ids
    touched = {layer: np.zeros(sum(layout.primes[layer][place]), np.uint8) for layer in layers}
    num_parts = max(1, -(-len(tokens) // max_ngrams))
    distinct = 0
    for part in range(num_parts):
        for windows in _new_windows(hasher, tokens, place, (part, num_parts)):
            distinct += len(windows)
            for layer in layers:
                _touch(touched[layer], _rows_of_order(hasher, windows, layer, place))
    return {
        layer: _load(hasher, layer, place, touched[layer], (len(tokens), distinct))
        for layer in layers
    }


def _new_windows(
    hasher: NgramHasher, tokens: TokenIds, place: int, part: tuple[int, int]
) -> Iterator[Int64Array]:
    """Windows ``[n, N]`` of the part's n-grams of an order, each n-gram once."""
    layout = hasher.layout
    multipliers = layout.window_multipliers(layout.config.layer_ids[0])[place]
    used = [lag for lag, multiplier in enumerate(multipliers) if multiplier]
    seen = np.empty(0, np.uint64)
    for windows in _windows(hasher, tokens):
        keys, first = np.unique(_keys(windows[:, used]), return_index=True)
        at = np.searchsorted(seen, keys)
        is_new = keys % np.uint64(part[1]) == part[0]
        is_new[at < len(seen)] &= seen[at[at < len(seen)]] != keys[at < len(seen)]
        seen = np.insert(seen, at[is_new], keys[is_new])
        yield windows[first[is_new]]


def _windows(hasher: NgramHasher, tokens: TokenIds) -> Iterator[Int64Array]:
    past = np.empty(0, np.int64)
    for ids in tokens.chunks():
        yield hasher.windows(ids, past)
        past = np.concatenate([past, ids])[-hasher.layout.config.max_order :]


def _keys(classes: Int64Array) -> Uint64Array:
    """64 bits by which n-grams ``[n, order]`` are told apart (the mixing steps of splitmix64).

    Independent of the memory's own hash: two n-grams that this one confuses must count as two.
    """
    keys = np.zeros(len(classes), np.uint64)
    for column in classes.T:
        keys = (keys ^ column.astype(np.uint64)) + _STEP
        keys = (keys ^ (keys >> np.uint64(30))) * _FIRST
        keys = (keys ^ (keys >> np.uint64(27))) * _SECOND
        keys ^= keys >> np.uint64(31)
    return keys


def _rows_of_order(hasher: NgramHasher, windows: Int64Array, layer: int, place: int) -> Int64Array:
    """Rows of an order's heads, counted from its first head's first row: ``[n, heads]``."""
    heads = hasher.layout.config.num_heads
    columns = slice(place * heads, (place + 1) * heads)
    return (
        hasher.window_rows(windows, layer)[:, columns] - hasher.layout.offsets[layer][columns.start]
    )


def _touch(touched: npt.NDArray[np.uint8], rows: Int64Array) -> None:
    known, counts = np.unique(rows, return_counts=True)
    touched[known] = np.minimum(touched[known] + np.minimum(counts, _SHARED), _SHARED)


def _load(
    hasher: NgramHasher,
    layer: int,
    place: int,
    touched: npt.NDArray[np.uint8],
    counted: tuple[int, int],
) -> OrderLoad:
    num_tokens, distinct = counted
    primes = hasher.layout.primes[layer][place]
    heads = np.split(touched, np.cumsum(primes)[:-1])
    alone = [int(np.count_nonzero(head == 1)) for head in heads]
    return OrderLoad(
        layer=layer,
        order=hasher.layout.config.orders[place],
        lookups=num_tokens * len(primes),
        distinct_ngrams=distinct,
        distinct_rows=float(np.mean([np.count_nonzero(head) for head in heads])),
        load=float(np.mean([distinct / prime for prime in primes])),
        collision_rate=float(np.mean([1 - each / max(1, distinct) for each in alone])),
        uniform_collision_rate=float(np.mean([_uniform(distinct, prime) for prime in primes])),
    )


def _uniform(distinct: int, rows: int) -> float:
    """Chance that one of `distinct` n-grams shares its row, all rows being equally likely."""
    return -expm1((distinct - 1) * log1p(-1 / rows)) if distinct and rows > 1 else 0.0
