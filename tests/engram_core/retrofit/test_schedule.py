"""Who is trained when: everybody first, sleepers later, contexts in turn, rates falling."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core.retrofit.schedule import Schedule


def make(lengths, **change):
    settings = {"epochs": 10, "num_contexts": 3, "batch_size": 4, "sleep_epochs": 3, "seed": 0}
    return Schedule(lengths, **{**settings, **change})


@given(st.lists(st.integers(1, 9), min_size=1, max_size=100), st.integers(1, 40))
def test_an_epoch_visits_every_fact_once(lengths, size) -> None:
    batches = make(lengths, batch_size=size).batches(0)
    assert sorted(fact for batch in batches for fact in batch) == list(range(len(lengths)))
    assert max(map(len, batches)) <= size


def test_confident_facts_sleep_and_wake() -> None:
    schedule = make([1] * 6)
    schedule.report(0, [0, 1], [True, False])
    awake = [0 in chain(*schedule.batches(epoch)) for epoch in range(6)]
    assert awake == [False, False, False, False, True, True]
    assert all(1 in chain(*schedule.batches(epoch)) for epoch in range(6))


def test_same_seed_same_batches() -> None:
    lengths = list(range(50))
    assert make(lengths).batches(0) == make(lengths).batches(0)
    assert make(lengths).batches(0) != make(lengths, seed=1).batches(0)


def test_contexts_take_turns() -> None:
    assert [make([1]).context(epoch) for epoch in range(4)] == [0, 1, 2, 0]


def test_learning_rate_falls_to_a_tenth() -> None:
    schedule = make([1], epochs=10)
    assert schedule.learning_rate_factor(0, 0) == 1
    assert schedule.learning_rate_factor(9, 1) == pytest.approx(0.1)
