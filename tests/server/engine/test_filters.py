"""Filters keep what transformers' own processors keep."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from server.engine.filters import apply_filters, min_p, top_k, top_p, typical_p
from server.engine.types import SamplingParams

WARPERS = {
    top_k: TopKLogitsWarper,
    top_p: TopPLogitsWarper,
    min_p: MinPLogitsWarper,
    typical_p: TypicalLogitsWarper,
}


def row_of(seed, size=3000):  # more than what is sorted first
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


def kept(row):
    return set(torch.isfinite(row).nonzero().flatten().tolist())


@pytest.mark.parametrize("size", [40, 3000])
@pytest.mark.parametrize(
    ("narrow", "value"),
    [(top_k, 1), (top_k, 7), (top_p, 0.1), (top_p, 0.95), (top_p, 0.999), (min_p, 0.05),
     (min_p, 1.0), (typical_p, 0.2), (typical_p, 0.95)],
)  # fmt: skip
def test_keeps_what_transformers_keeps(narrow, value, size):
    for seed in range(5):
        row = row_of(seed, size)
        expected = WARPERS[narrow](value)(None, row.unsqueeze(0))[0]
        narrowed = narrow(row, value)
        assert kept(narrowed) == kept(expected)
        assert torch.equal(narrowed[narrowed.isfinite()], row[narrowed.isfinite()])


@given(
    seed=st.integers(0, 99),
    k=st.integers(1, 60),
    p=st.floats(1e-6, 1.0),
    m=st.floats(0.0, 1.0),
    t=st.floats(1e-6, 1.0),
)
def test_something_always_remains(seed, k, p, m, t):
    params = SamplingParams(top_k=k, top_p=p, min_p=m, typical_p=t)
    assert kept(apply_filters(row_of(seed, 50), params))


def test_nothing_asked_for_changes_nothing():
    row = row_of(0)
    assert apply_filters(row, SamplingParams()) is row
