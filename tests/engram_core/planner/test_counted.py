"""CountedAccess: what it counts, and its prediction held against caches that really ran."""

import pydoc_data.topics
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.errors import ConfigError, IdRangeError
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.planner import (
    CountedAccess,
    HostBudget,
    MemoryShape,
    RecordFormat,
    Target,
    ZipfAccess,
    plan,
)

TOKENIZER = (
    Path(__file__).parents[2]
    / "golden"
    / "demo_v1"
    / "tokenizers"
    / "tiny_bytelevel"
    / "tokenizer.json"
)
ORDERS, HEADS, LAYERS, ROWS_PER_HEAD = (2, 3, 4), 2, 2, 200_003
RECORD = RecordFormat("int8", 28)  # 32 bytes
SHAPE = MemoryShape.from_rows_per_head(ROWS_PER_HEAD, LAYERS, ORDERS, HEADS, RECORD)
POINTS = 0.05


@pytest.fixture(scope="module")
def text():
    """Token ids of English that every Python carries, and their classes."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    topics = pydoc_data.topics.topics
    ids = tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics))).ids
    return np.array(ids), TokenCompressor.from_tokenizer(tokenizer).class_ids


def hash_everything(ids, class_ids):
    """Every row that every token reads: one number per layer and row, ``[tokens, reads]``."""
    config = EngramConfig(
        form="v41", layer_ids=(0, 1), orders=ORDERS, num_heads=HEADS,
        rows_per_head=(ROWS_PER_HEAD,) * len(ORDERS), head_dim=28, hidden_size=8,
    )  # fmt: skip
    layout = HashLayout.build(config, int(class_ids.max()) + 1)
    assert tuple(layout.rows.values()) == SHAPE.rows
    hasher = NgramHasher(layout, class_ids)
    return np.concatenate([hasher.row_ids(ids, 0), hasher.row_ids(ids, 1) + layout.rows[0]], axis=1)


def run_tiers(warm_up, reads, sizes):
    """What share of `reads` each tier answers, filled with the hottest rows of `warm_up`."""
    hottest = np.argsort(-np.bincount(warm_up.ravel(), minlength=SHAPE.total_rows), kind="stable")
    tier_of_row = np.full(SHAPE.total_rows, len(sizes))
    for tier, (start, end) in enumerate(pairwise(np.cumsum([0, *sizes]))):
        tier_of_row[hottest[start:end]] = tier
    return np.bincount(tier_of_row[reads].ravel(), minlength=len(sizes) + 1) / reads.size


def predict(ids, class_ids, sizes):
    """The plan's shares of a device cache and a DRAM cache of so many rows, and of the SSD."""
    device, dram = (rows * RECORD.bytes for rows in sizes)
    hosts = HostBudget(device_memory=device, dram=dram, ssd_iops=1e6)
    made = plan(SHAPE, hosts, Target(1), CountedAccess(SHAPE, ids, class_ids))
    shares = {tier.name: tier.share for tier in made.tiers}
    return [shares[name] for name in ("device", "dram", "ssd")]


@pytest.fixture(scope="module")
def halves(text):
    """Both halves of the text: ids, and every row that they read."""
    ids, class_ids = text
    rows, half = hash_everything(ids, class_ids), len(ids) // 2
    return (ids[:half], rows[:half]), (ids[half:], rows[half:])


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("sizes", [(256, 2048), (1024, 8192), (8192, 65_536), (20_000, 200_000)])
def test_prediction_from_one_half_is_measured_in_the_other(text, halves, sizes, swapped):
    """The plan sees one half; the caches are filled from it and read by the other.

    The halves differ by about as much as the tolerance: each predicts itself that much better.
    """
    (ids, warm_up), (_, reads) = reversed(halves) if swapped else halves
    predicted = predict(ids, text[1], sizes)
    measured = run_tiers(warm_up, reads, sizes)
    assert measured.min() > 0.05, "a tier that answers next to nothing would prove nothing"
    np.testing.assert_allclose(predicted, measured, atol=POINTS)


def test_reads_of_unknown_rows_are_predicted_and_not_counted_away(text, halves):
    (ids, warm_up), (_, reads) = halves
    sizes = (20_000, 200_000)
    missed = run_tiers(warm_up, reads, sizes)[-1]
    assert predict(ids, text[1], sizes)[-1] == pytest.approx(missed, abs=0.02)
    assert missed > 0.09
    assert run_tiers(warm_up, warm_up, sizes)[-1] < 0.01, "what plain counting would say"


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
def test_share_grows_from_nothing_to_all(seed, parts):
    ids = np.random.default_rng(seed).zipf(1.5, 1200) % 300
    shape = MemoryShape.from_rows_per_head(211, 2, (2, 3), 2, RECORD)
    access = CountedAccess(shape, ids, np.arange(300))
    shares = [access.share(part * shape.total_rows) for part in sorted(parts)]
    assert (access.share(0), access.share(shape.total_rows)) == (0, 1)
    assert all(0 <= a <= b + 1e-12 <= 1 + 2e-12 for a, b in pairwise(shares))


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
