"""ConvState: appending, truncating, and what it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram_core.conv_state import ConvState
from engram_core.errors import ConfigError, StateError


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=8))
def test_truncated_tokens_leave_no_trace(rounds):
    """Append k tokens and a draft, take the draft back: as if only the k had been there."""
    state, kept = ConvState(4, 2, max_draft=3), torch.zeros(4, 2)
    for tokens, draft in rounds:
        committed = torch.randn(tokens, 2)
        state.append(committed)
        kept = torch.cat([kept, committed])
        if draft:
            state.append(torch.randn(draft, 2))
        state.truncate(len(kept) - 4)
        torch.testing.assert_close(state.history, kept[-4:])
        assert state.length == len(kept) - 4


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sets(st.integers(1, 30)),
    st.integers(0, 3),
)
def test_a_snapshot_is_the_state_as_it_was(chunks, watched, max_draft):
    state, whole = ConvState(4, 2, max_draft=max_draft), torch.randn(sum(chunks), 2)
    start, taken = 0, {}
    for tokens in chunks:
        state.watch(sorted(watched))
        state.append(whole[start : start + tokens])
        taken |= state.take_snapshots()
        start += tokens
    assert set(taken) == {length for length in watched if length <= len(whole)}
    for length, snapshot in taken.items():
        fresh = ConvState(4, 2)
        fresh.append(whole[:length])
        assert torch.equal(snapshot.history, fresh.history)
        snapshot.append(whole[length:])  # another sequence goes on from it
        assert torch.equal(snapshot.history, state.history)
        assert snapshot.length == state.length == len(whole)
    assert state.take_snapshots() == {}


def test_starts_from_zeros():
    assert ConvState(3, 2).history.tolist() == [[0, 0]] * 3


def test_cannot_reach_back_beyond_the_draft():
    state = ConvState(2, 1, max_draft=1)
    state.append(torch.ones(5, 1))
    with pytest.raises(StateError, match="truncate to 3 tokens: this state holds 4 to 5"):
        state.truncate(3)
    with pytest.raises(StateError, match="truncate to 6"):
        state.truncate(6)


def test_refuses_impossible_sizes():
    with pytest.raises(ConfigError, match="history -1"):
        ConvState(-1, 1)
