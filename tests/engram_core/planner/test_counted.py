"""CountedAccess: what it counts; `test_against_tiers` holds it against caches that ran."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError, IdRangeError
from engram_core.planner import CountedAccess, MemoryShape, RecordFormat, ZipfAccess

RECORD = RecordFormat("int8", 28)  # 32 bytes
SHAPE = MemoryShape.from_rows_per_head(200_003, 2, (2, 3, 4), 2, RECORD)


def test_ids_drawn_alike_are_read_alike():
    """One class per id and no repeated n-gram beyond chance: the shares of a uniform table."""
    ids = np.random.default_rng(0).integers(0, 1000, 200_000)
    shape = MemoryShape.from_rows_per_head(101, 1, (2,), 1, RECORD)
    access = CountedAccess(shape, ids, np.arange(1000))
    for rows in (10, 50, 90):
        assert access.share(rows) == pytest.approx(ZipfAccess(shape, 0).share(rows), abs=0.01)


def test_a_text_that_repeats_itself_is_all_known():
    shape = MemoryShape.from_rows_per_head(10_007, 1, (2, 3), 2, RECORD)
    access = CountedAccess(shape, np.tile(np.arange(10), 400), np.arange(10))
    assert access.unseen < 0.001  # the first n-grams, which reach before the text
    assert access.share(40) > 0.99
    assert access.to_dict()["tokens"] == 4000


def test_a_text_that_never_repeats_is_read_at_random():
    shape = MemoryShape.from_rows_per_head(1_000_003, 1, (2,), 1, RECORD)
    access = CountedAccess(shape, np.arange(2000), np.arange(2000))
    assert access.unseen > 0.99
    assert access.share(500_000) == pytest.approx(0.5, abs=0.01)


@given(st.integers(0, 2**32), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_share_grows_from_nothing_to_all_but_for_its_sampling(seed, parts):
    ids = np.random.default_rng(seed).zipf(1.5, 1200) % 300
    shape = MemoryShape.from_rows_per_head(211, 2, (2, 3), 2, RECORD)
    access = CountedAccess(shape, ids, np.arange(300))
    shares = [access.share(part * shape.total_rows) for part in sorted(parts)]
    assert (access.share(0), access.share(shape.total_rows)) == (0, 1)
    assert all(0 <= a <= b + 0.01 <= 1.02 for a, b in pairwise(shares))


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (np.arange(999), "number of tokens is 999; accepted: one list of 1000 to 8388608 ids"),
        (np.zeros((2, 1000), dtype=int), r"number of tokens is \(2, 1000\); accepted: one list"),
    ],
)
def test_refusals(ids, sentence):
    with pytest.raises(ConfigError, match=sentence):
        CountedAccess(SHAPE, ids, np.arange(5000))


def test_ids_without_a_class_are_refused():
    with pytest.raises(IdRangeError, match="token id 1999 is out of range; accepted: below 1000"):
        CountedAccess(SHAPE, np.arange(2000), np.arange(1000))
