"""MemoryShape: published sizes, shards, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core.config import EngramConfig
from engram_core.errors import ConfigError
from engram_core.layout import HashLayout
from engram_core.planner import MemoryShape, RecordFormat

BF16 = RecordFormat("bfloat16", 64)
V41_ROWS = (384_006_168, 384_016_682)


def test_deepseek_v41_has_its_published_size():
    shape = MemoryShape(V41_ROWS, (2, 3, 4), 8, RecordFormat("fp8", 256))
    assert (shape.columns, shape.rows_per_token) == (24, 48)
    assert shape.total_bytes == sum(V41_ROWS) * 264
    assert round(shape.total_bytes / 2**30) == 189
    assert shape.parameters == sum(V41_ROWS) * 256


def test_rows_per_head_give_the_released_numbers_of_rows():
    record = RecordFormat("fp8", 256)
    assert MemoryShape.from_rows_per_head(16_000_000, 2, (2, 3, 4), 8, record).rows == V41_ROWS


def test_the_demos_tables_have_the_demos_size():
    layout = HashLayout.build(EngramConfig.from_demo({}), 98_627)
    shape = MemoryShape.from_rows_per_head(646_400, 2, (2, 3), 8, BF16)
    assert shape.rows == tuple(layout.rows.values()) == (10_344_164, 10_348_242)
    assert [round(rows * 128 / 1e9, 2) for rows in shape.rows] == [1.32, 1.32]
    # 32 records fill a page exactly: only the last page of each table has room left
    assert shape.stored_bytes(8) - shape.total_bytes < 2 * 4096


@given(
    st.lists(st.integers(48, 10**9), min_size=1, max_size=4),
    st.integers(1, 16),
    st.data(),
)
def test_shards_hold_every_row_and_at_most_one_more_each(rows, num_heads, data):
    shape = MemoryShape(tuple(rows), (2, 3, 5), num_heads, BF16)
    heads = data.draw(st.integers(1, num_heads))
    for whole, part in zip(shape.rows, shape.shard_rows(heads), strict=True):
        assert 0 <= part * num_heads - whole * heads < num_heads
    assert shape.shard_rows(num_heads) == shape.rows


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (((), (2,), 1), r"rows is \(\); accepted: a number for each of the layers"),
        (((100, -1), (2,), 1), "rows is -1; accepted: a whole number from 1 to 10000000000000"),
        (((100,), (), 1), r"orders is \[\]; accepted: distinct ascending numbers from 2 to 64"),
        (((100,), (3, 2), 1), r"orders is \[3, 2\]; accepted: distinct ascending"),
        (((100,), (1, 2), 1), r"orders is \[1, 2\]; accepted: distinct ascending"),
        (((100,), (2,), 0), "num_heads is 0; accepted: a whole number from 1 to 4096"),
        (((100,) * 9, (2,), 1024), "is 9 x 1 x 1024 = 9216; accepted: up to 4096"),
        (((3,), (2,), 4), "rows is 3; accepted: a whole number from 4 to"),
    ],
)
def test_refusals(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        MemoryShape(*arguments, BF16)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((1, 2, (2,), 8), "rows_per_head is 1; accepted: a whole number from 2 to"),
        ((10**13, 2, (2,), 8), "rows_per_head is 10000000000000; accepted: a whole number from 2"),
        ((100, None, (2,), 8), "num_layers is None; accepted: a whole number from 1 to 4096"),
        ((100, 4096, (2, 3), 8), "is 4096 x 2 x 8 = 65536; accepted: up to 4096"),
    ],
)
def test_refusals_of_rows_per_head(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        MemoryShape.from_rows_per_head(*arguments, BF16)
