"""The gather primitives against the obvious implementation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError, IdRangeError
from engram_core.store.kernels import (
    as_words,
    check_ids,
    check_output,
    count_unique,
    round_rows,
    take_rows,
)

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@given(
    st.sampled_from(DTYPES), st.integers(1, 40), st.integers(1, 33), st.lists(st.integers(0, 39))
)
def test_taken_rows_equal_indexing(dtype, num_rows, row_dim, wanted):
    table = torch.randn(num_rows, row_dim).to(dtype)
    ids = np.array([i % num_rows for i in wanted], dtype=np.int64)
    out = torch.empty(len(ids), row_dim, dtype=dtype)
    take_rows(as_words(table), ids, as_words(out))
    assert torch.equal(out, table[torch.from_numpy(ids)])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(1, 2**62))
def test_every_bad_id_is_refused(values, num_rows):
    ids = np.array(values, dtype=np.int64)
    if all(0 <= value < num_rows for value in values):
        check_ids(ids, num_rows)
    else:
        with pytest.raises(IdRangeError, match="accepted: 0 to"):
            check_ids(ids, num_rows)


def test_an_id_error_is_an_index_error_that_names_the_id():
    with pytest.raises(IndexError, match="row id -1 is out of range; accepted: 0 to 9"):
        check_ids(np.array([3, -1]), 10)


@given(st.lists(st.integers(-5, 5)))
def test_unique_ids_are_counted(values):
    ids = np.array(values, dtype=np.int64)
    before = ids.copy()
    assert count_unique(ids) == len(set(values))
    assert (ids == before).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_defines_one_value_in_both_outputs(dtype):
    payload = torch.randn(3000, 17).to(dtype)  # several chunks
    short, wide = torch.empty(3000, 17, dtype=torch.bfloat16), torch.empty(3000, 17)
    round_rows(payload, short)
    round_rows(payload, wide)
    assert torch.equal(short, payload.bfloat16())
    assert torch.equal(wide, short.float())


@pytest.mark.parametrize(
    "out",
    [
        torch.empty(3, 4),
        torch.empty(2, 5),
        torch.empty(2, 4, dtype=torch.float16),
        torch.empty(4, 2).T,
        torch.empty(2, 4, device="meta"),
    ],
    ids=["rows", "width", "dtype", "order", "place"],
)
def test_an_output_that_cannot_be_filled_is_refused(out):
    check_output(torch.empty(2, 4), 2, 4)
    with pytest.raises(ConfigError, match="accepted"):
        check_output(out, 2, 4)
