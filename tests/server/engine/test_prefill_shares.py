"""Sharing out a step's prompt tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.prefill_shares import share_out


@pytest.mark.parametrize(
    ("lacking", "priorities", "shares"),
    [
        ([], [], []),
        ([30], [0], [10]),
        ([4], [0], [4]),
        ([30, 4], [0, 0], [6, 4]),
        ([30, 30], [0, 0], [10, 0]),
        ([30, 29], [0, 0], [5, 5]),
        ([30, 30], [0, 1], [5, 5]),
        ([30, 3, 9], [0, 0, 1], [5, 0, 5]),
    ],
)
def test_the_oldest_is_sure_of_half_and_the_shortest_comes_next(lacking, priorities, shares):
    assert share_out(lacking, priorities, 10) == shares


@given(
    prompts=st.lists(st.tuples(st.integers(1, 50), st.integers(-2, 2)), max_size=6),
    budget=st.integers(0, 100),
)
def test_what_can_be_used_is_given_out(prompts, budget):
    lacking = [lacks for lacks, _ in prompts]
    shares = share_out(lacking, [priority for _, priority in prompts], budget)
    assert sum(shares) == min(budget, sum(lacking))
    assert all(0 <= share <= lacks for share, lacks in zip(shares, lacking, strict=True))
    if lacking:
        assert shares[0] >= min(lacking[0], (budget + 1) // 2)
