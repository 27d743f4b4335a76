"""HostTier: every storage dtype delivers bf16(payload), any row width, no wrapped ids."""

import numpy as np
import pytest
import torch

from engram_core.errors import ConfigError, IdRangeError
from engram_core.store.host import HostTier

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row_dim", [1, 3, 64])
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_rows_have_one_value_whatever_stores_them(dtype, row_dim, count):
    table = torch.randn(100, row_dim).to(dtype)
    ids = np.random.default_rng(0).integers(0, 100, count)
    short = torch.empty(count, row_dim, dtype=torch.bfloat16)
    wide = torch.empty(count, row_dim)
    tier = HostTier(table)
    tier.gather(ids, short)
    report = tier.gather(ids, wide)
    assert torch.equal(short, table.bfloat16()[torch.from_numpy(ids)])
    assert torch.equal(wide, short.float())
    assert report.rows_by_tier == {"host": count}
    assert report.duration_by_tier_s["host"] >= 0


@pytest.mark.parametrize("bad", [-1, 100, 2**40])
def test_a_bad_id_raises_and_leaves_the_output_alone(bad):
    out = torch.full((2, 4), 7.0)
    with pytest.raises(IdRangeError):
        HostTier(torch.zeros(100, 4)).gather(np.array([0, bad]), out)
    assert (out == 7).all()


def test_it_says_what_it_is():
    tier = HostTier(torch.zeros(100, 4, dtype=torch.bfloat16), name="dram")
    assert (tier.name, tier.num_rows, tier.row_dim, tier.nbytes) == ("dram", 100, 4, 800)
    assert not tier.is_blocking


@pytest.mark.parametrize(
    "rows",
    [torch.zeros(4), torch.zeros(4, 4, dtype=torch.int8), torch.zeros(4, 2).T],
    ids=["dimensions", "dtype", "order"],
)
def test_rows_it_cannot_read_are_refused(rows):
    with pytest.raises(ConfigError, match="accepted"):
        HostTier(rows)
