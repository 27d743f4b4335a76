"""SparseTier equals the dense table whose unwritten rows are zero."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError, IdRangeError
from engram_core.store.host import HostTier
from engram_core.store.sparse import SparseTier

NUM_ROWS = 50


@given(
    st.lists(st.integers(0, NUM_ROWS - 1), unique=True),
    st.lists(st.integers(0, NUM_ROWS - 1)),
    st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_sparse_equals_dense(written, asked, dtype):
    written, asked = np.array(written, dtype=np.int64), np.array(asked, dtype=np.int64)
    rows = torch.randn(len(written), 6).to(dtype)
    dense = torch.zeros(NUM_ROWS, 6, dtype=dtype)
    dense[torch.from_numpy(written)] = rows
    ours, theirs = (torch.empty(len(asked), 6) for _ in range(2))
    sparse = SparseTier(written, rows, NUM_ROWS)
    sparse.gather(asked, ours)
    HostTier(dense).gather(asked, theirs)
    assert torch.equal(ours, theirs)
    assert sparse.num_written == len(written)


def test_ids_are_those_of_the_whole_table():
    tier = SparseTier(np.array([3]), torch.ones(1, 2), NUM_ROWS)
    for bad in (-1, NUM_ROWS):
        with pytest.raises(IdRangeError, match=f"0 to {NUM_ROWS - 1}"):
            tier.gather(np.array([bad]), torch.empty(1, 2))
    with pytest.raises(IdRangeError):
        SparseTier(np.array([NUM_ROWS]), torch.ones(1, 2), NUM_ROWS)


@pytest.mark.parametrize("ids", [[1], [1, 1], [[1, 2]]])
def test_each_written_row_needs_its_own_id(ids):
    with pytest.raises(ConfigError, match="accepted"):
        SparseTier(np.array(ids), torch.ones(2, 2), NUM_ROWS)


def test_it_costs_the_map_and_the_written_rows():
    tier = SparseTier(np.array([4, 2]), torch.ones(2, 8), NUM_ROWS)
    assert tier.nbytes == NUM_ROWS * 4 + 3 * 8 * 2
