"""RecordFormat: bytes of a row, rows of a page, and that no record crosses one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError
from engram_core.planner import RecordFormat
from engram_core.planner.records import BITS_PER_VALUE, PAGE_BYTES
from engram_core.tables.int4 import quantise

formats = st.builds(
    RecordFormat, st.sampled_from(sorted(BITS_PER_VALUE)), st.integers(1, 3000).map(lambda n: 2 * n)
)


@pytest.mark.parametrize(
    ("dtype", "row_dim", "expected", "per_page"),
    [
        ("bfloat16", 64, 128, 32),
        ("float16", 96, 192, 21),
        ("int8", 64, 68, 60),
        ("fp8", 256, 264, 15),
        ("fp8", 40, 42, 97),  # a block that is not full has a scale too
        ("int4", 64, 34, 120),
        ("bfloat16", 4096, 8192, 0),
    ],
)
def test_sizes_are_those_of_the_formats(dtype, row_dim, expected, per_page):
    record = RecordFormat(dtype, row_dim)
    assert (record.bytes, record.per_page) == (expected, per_page)


def test_int4_is_what_a_table_stores():
    codes, scales = quantise(torch.randn(5, 64))
    assert RecordFormat("int4", 64).bytes * 5 == codes.nbytes + scales.nbytes


@given(formats, st.integers(0, 10**12))
def test_pages_hold_what_was_counted_for_them(record, rows):
    stored = record.stored_bytes(rows)
    assert stored % PAGE_BYTES == 0
    assert stored >= rows * record.bytes
    assert rows <= record.rows_in(stored)
    if rows:
        assert record.rows_in(stored - PAGE_BYTES) < rows


@given(formats)
def test_no_record_crosses_a_page_unless_it_is_larger(record):
    assert record.per_page * record.bytes <= PAGE_BYTES
    assert record.pages_per_read == (1 if record.per_page else -(-record.bytes // PAGE_BYTES))
    assert record.line_bytes % 64 == 0
    assert 0 <= record.line_bytes - record.bytes < 64


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("float64", 64), "dtype is 'float64'; accepted: bfloat16, float16, int8, fp8, int4"),
        (("int8", 0), "row_dim is 0; accepted: a whole number from 1 to 65536"),
        (("int8", 2.5), "row_dim is 2.5; accepted: a whole number from 1 to 65536"),
        (("int8", True), "row_dim is True; accepted: a whole number from 1 to 65536"),
        (("int4", 63), "row_dim is 63; accepted: an even number for int4"),
    ],
)
def test_refusals(arguments, sentence):
    with pytest.raises(ConfigError) as refused:
        RecordFormat(*arguments)
    assert str(refused.value) == sentence
