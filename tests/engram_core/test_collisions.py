"""What a stream does to rows, against a count with sets and a hash without a pattern."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram_core.collisions import count_collisions
from engram_core.config import EngramConfig
from engram_core.errors import IdRangeError
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout

NUM_IDS = 40


class Stream:
    def __init__(self, ids, chunk):
        self._ids, self._chunk = np.asarray(ids, dtype=np.int64), chunk

    def __len__(self):
        return len(self._ids)

    def chunks(self):
        for start in range(0, len(self._ids), self._chunk):
            yield self._ids[start : start + self._chunk]


def hasher(rows=53, num_ids=NUM_IDS, classes=NUM_IDS, **change):
    config = EngramConfig(
        form="v41", layer_ids=(1, 4), orders=(2, 3), num_heads=2, rows_per_head=(rows, 2 * rows),
        head_dim=4, hidden_size=8, **change,
    )  # fmt: skip
    return NgramHasher(HashLayout.build(config, classes), np.arange(num_ids) % classes)


def counted_with_sets(hasher, ids, layer, place):
    """Distinct n-grams, and per head: rows touched and the share of n-grams that share a row."""
    config = hasher.layout.config
    windows = hasher.windows(ids)[:, : config.orders[place]]
    rows = hasher.row_ids(ids, layer)
    grams = {tuple(w): r for w, r in zip(windows.tolist(), rows.tolist(), strict=True)}
    touched, shared = [], []
    for head in range(config.num_heads):
        column = [row[place * config.num_heads + head] for row in grams.values()]
        touched.append(len(set(column)))
        shared.append(sum(column.count(row) > 1 for row in column) / len(grams))
    return len(grams), np.mean(touched), np.mean(shared)


@given(
    ids=st.lists(st.integers(0, NUM_IDS - 1), min_size=1, max_size=300),
    chunk=st.sampled_from([1, 7, 1000]),
    max_ngrams=st.sampled_from([5, 100, 10_000]),
    classes=st.sampled_from([NUM_IDS, 11]),
)
@settings(max_examples=40, deadline=None)
def test_it_counts_as_sets_do(ids, chunk, max_ngrams, classes):
    made = hasher(classes=classes)
    loads = count_collisions(made, Stream(ids, chunk), max_ngrams)
    assert [(load.layer, load.order) for load in loads] == [(1, 2), (1, 3), (4, 2), (4, 3)]
    for load, place in zip(loads, (0, 1, 0, 1), strict=True):
        distinct, touched, shared = counted_with_sets(made, ids, load.layer, place)
        assert load.lookups == 2 * len(ids)
        assert load.distinct_ngrams == distinct
        assert load.distinct_rows == touched
        assert load.collision_rate == pytest.approx(shared)
        primes = made.layout.primes[load.layer][place]
        assert load.load == pytest.approx(np.mean([distinct / prime for prime in primes]))


def test_random_ngrams_collide_as_uniform_hashing_says():
    made = hasher(rows=20_011, num_ids=5000, classes=5000)
    ids = np.random.default_rng(0).integers(0, 5000, 20_000)
    for load in count_collisions(made, Stream(ids, 4096)):
        assert 0.3 < load.uniform_collision_rate < 0.7
        assert load.collision_rate == pytest.approx(load.uniform_collision_rate, abs=0.02)


def test_one_ngram_shares_with_nobody():
    load = count_collisions(hasher(), Stream([3], 10))[0]
    assert (load.distinct_ngrams, load.distinct_rows, load.lookups) == (1, 1, 2)
    assert load.collision_rate == load.uniform_collision_rate == 0


def test_an_id_without_a_class_is_refused():
    with pytest.raises(IdRangeError, match="token id 40 is out of range; accepted: below 40"):
        count_collisions(hasher(), Stream([1, NUM_IDS], 10))


def test_lagged_orders_see_the_tokens_that_they_hash():
    made = hasher(lags=(1, 0))
    ids = [1, 2, 3, 1, 2, 4]
    load = count_collisions(made, Stream(ids, 2))[0]
    lagged = {tuple(w) for w in made.windows(ids)[:, 1:3].tolist()}
    assert load.distinct_ngrams == len(lagged)
