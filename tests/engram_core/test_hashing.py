"""NgramHasher against a plain-integer restatement; history, barriers, ragged batches, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core.config import EngramConfig
from engram_core.errors import ConfigError, IdRangeError
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout

NUM_IDS, CLASSES = 90, 60
CLASS_IDS = np.arange(NUM_IDS) % CLASSES
ORDER_SETS = [(2, 3), (2, 3, 4), (3, 4, 5), (2, 5), (4,)]


def hasher(orders=(2, 3), **change):
    config = EngramConfig(
        form="v41", layer_ids=(1, 4), orders=orders, num_heads=3, rows_per_head=(97,) * len(orders),
        head_dim=4, hidden_size=8, **change,
    )  # fmt: skip
    return NgramHasher(HashLayout.build(config, CLASSES), CLASS_IDS)


def naive(hasher, ids, layer, barrier=None):
    layout, config = hasher.layout, hasher.layout.config
    rows = []
    for t in range(len(ids)):
        slots, dead = [], False
        for k in range(config.max_order):
            dead = dead or t - k < 0 or bool(barrier is not None and barrier[t - k])
            slots.append(hasher.pad_class if dead else int(CLASS_IDS[ids[t - k]]))
        row, column = [], 0
        for o, order in enumerate(config.orders):
            mix, lag = 0, config.lags[o] if config.lags else 0
            for k in range(order):
                place = k if config.multiplier_order == "newest_first" else order - 1 - k
                mix ^= slots[lag + k] * layout.multipliers[layer][place]
            for prime in layout.primes[layer][o]:
                row.append(mix % prime + layout.offsets[layer][column])
                column += 1
        rows.append(row)
    return np.array(rows, dtype=np.int64).reshape(len(ids), config.num_columns)


tokens = st.lists(st.integers(0, NUM_IDS - 1), max_size=20)


@given(tokens, st.sampled_from(ORDER_SETS), st.sampled_from([1, 4]))
def test_equals_plain_integers(ids, orders, layer):
    under_test = hasher(orders)
    found = under_test.row_ids(ids, layer)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, naive(under_test, ids, layer))


@given(tokens, st.sampled_from(ORDER_SETS), st.data())
def test_history_and_barrier_give_the_whole_sequences_rows(ids, orders, data):
    barrier = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    cut = data.draw(st.integers(0, len(ids)))
    under_test = hasher(orders)
    whole = naive(under_test, ids, 1, barrier)
    found = under_test.row_ids(ids[cut:], 1, history=ids[:cut], barrier=barrier)
    np.testing.assert_array_equal(found, whole[cut:])


@given(tokens, st.sampled_from(ORDER_SETS), st.booleans(), st.data())
def test_lags_and_the_order_of_multipliers(ids, orders, is_reversed, data):
    cut = data.draw(st.integers(0, len(ids)))
    under_test = hasher(
        orders,
        lags=tuple(data.draw(st.integers(0, orders[-1] - order)) for order in orders),
        multiplier_order="oldest_first" if is_reversed else "newest_first",
    )
    whole = naive(under_test, ids, 4)
    np.testing.assert_array_equal(under_test.row_ids(ids, 4), whole)
    found = under_test.row_ids(ids[cut:], 4, history=ids[:cut])
    np.testing.assert_array_equal(found, whole[cut:])


def test_ids_beyond_the_map_can_stay_what_they_are():
    keeping, refusing = hasher(keeps_unmapped_ids=True, pad_id=200), hasher()
    assert keeping.pad_class == 200
    windows = keeping.windows([5, 1000, -1], history=[NUM_IDS - 1, NUM_IDS])
    expected = [[5, NUM_IDS, CLASS_IDS[-1]], [1000, 5, NUM_IDS], [-1, 1000, 5]]
    np.testing.assert_array_equal(windows, expected)
    np.testing.assert_array_equal(keeping.step_windows([[5, 1000]]), [[1000, 5, 200]])
    with pytest.raises(IdRangeError, match="1000"):
        refusing.windows([1000])
    with pytest.raises(IdRangeError, match="pad_id 200"):
        hasher(pad_id=200)


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4))
def test_ragged_batch_equals_each_alone(pairs):
    under_test = hasher((2, 3, 4))
    barriers = [[i % 3 == 0 for i in range(len(h) + len(t))] for h, t in pairs]
    packed = under_test.ragged_windows(
        [i for _, t in pairs for i in t],
        [len(t) for _, t in pairs],
        [h for h, _ in pairs],
        barriers,
    )
    alone = [under_test.row_ids(t, 4, h, b) for (h, t), b in zip(pairs, barriers, strict=True)]
    np.testing.assert_array_equal(under_test.window_rows(packed, 4), np.concatenate(alone))


def test_negative_ids_pass_unchanged_and_hash_with_floor_modulo():
    under_test = hasher()
    layout = under_test.layout
    row = under_test.row_ids([-3], 1)[0]
    mix = (-3 * layout.multipliers[1][0]) ^ (under_test.pad_class * layout.multipliers[1][1])
    assert row[0] == mix % layout.primes[1][0][0]
    assert (row >= 0).all()
    assert (row < layout.rows[1]).all()


@pytest.mark.parametrize("ids", [[NUM_IDS], [0, NUM_IDS + 5]])
def test_ids_without_a_class_raise(ids):
    with pytest.raises(IdRangeError, match=f"token id {max(ids)} .*below {NUM_IDS}"):
        hasher().row_ids(ids, 1)
    with pytest.raises(IndexError):
        hasher().row_ids([0], 1, history=ids)


def test_wrong_shapes_and_layers_raise():
    with pytest.raises(ConfigError, match="layer 2 has no Engram"):
        hasher().row_ids([0], 2)
    with pytest.raises(ConfigError, match="one dimension"):
        hasher().row_ids([[0]], 1)
    with pytest.raises(ConfigError, match=r"barrier has shape \(1,\); accepted: \(3,\)"):
        hasher().row_ids([0], 1, history=[1, 2], barrier=[True])
    with pytest.raises(ConfigError, match="lengths add up to 3"):
        hasher().ragged_windows([0, 1], [1, 2])
    with pytest.raises(IdRangeError, match="pad_id 2"):
        NgramHasher(hasher().layout, [0, 1])
