"""What a prefix is known by, and when its blocks are kept."""

import pytest
from sequences import make_sequence

from server.engine.block_pool import BlockPool
from server.engine.prefix_cache import PrefixCache
from server.engine.types import EngramParams

PROMPT = tuple(range(10, 21))  # two full blocks of four, and three tokens
OFF = EngramParams(enabled=False)


@pytest.fixture
def pool():
    return BlockPool(16, 4)


@pytest.fixture
def cache(pool):
    return PrefixCache(pool, enabled=True)


def computed(cache, pool, prompt=PROMPT, **rest):
    """A sequence whose prompt went through a step, and whose blocks are kept."""
    sequence = make_sequence(prompt, **rest)
    cache.claim(sequence, cache.match(sequence))
    sequence.block_table += pool.allocate(pool.blocks_for(len(prompt)) - len(sequence.block_table))
    sequence.num_computed = len(prompt)
    cache.keep(sequence)
    return sequence


SAME = [
    ({}, {}),
    ({"version": "v"}, {"version": "v"}),
    ({"version": "v", "engram": OFF}, {"version": "w", "engram": OFF}),
    ({"version": "v", "engram": OFF}, {}),
    ({"engram": EngramParams(gate_scale=0.5)}, {"engram": EngramParams(gate_scale=0.7)}),
    ({"isolation": "a", "version": "v"}, {"isolation": "a", "version": "v"}),
    ({"do_sample": True, "seed": 3}, {}),
]
DIFFERENT = [
    ({"version": "v"}, {"version": "w"}),
    ({"version": "v"}, {}),
    ({"version": "v"}, {"version": "v", "engram": OFF}),
    ({"version": "v"}, {"version": "v", "engram": EngramParams(gate_scale=0.999)}),
    ({"isolation": "a"}, {"isolation": "b"}),
    ({"isolation": "a"}, {}),
    ({"isolation": "none"}, {}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_is_shared(cache, pool, one, other):
    first = computed(cache, pool, **one)
    assert cache.match(make_sequence(PROMPT, **other)) == first.block_table[:2]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_is_not_shared(cache, pool, one, other):
    computed(cache, pool, **one)
    assert cache.match(make_sequence(PROMPT, **other)) == []
    computed(cache, pool, **other)
    assert len(cache.match(make_sequence(PROMPT, **other))) == 2


def test_a_block_is_known_by_all_tokens_before_it(cache, pool):
    first = computed(cache, pool)
    assert cache.match(make_sequence((9, *PROMPT[1:]))) == []
    assert cache.match(make_sequence((*PROMPT[:7], 9, *PROMPT[8:]))) == first.block_table[:1]


@pytest.mark.parametrize(("length", "blocks"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (11, 2)])
def test_at_least_one_token_is_computed(cache, pool, length, blocks):
    computed(cache, pool)
    assert len(cache.match(make_sequence(PROMPT[:length]))) == blocks
    assert cache.reach(make_sequence(PROMPT[:length])) == 4 * blocks


def test_a_judged_prompt_matches_nothing_but_is_kept(cache, pool):
    judged = computed(cache, pool, prompt_logprobs=True)
    assert cache.match(make_sequence(PROMPT, prompt_logprobs=True)) == []
    assert cache.match(make_sequence(PROMPT)) == judged.block_table[:2]


def test_a_gap_ends_the_prefix(cache, pool):
    first = computed(cache, pool)
    pool.forget(first.block_table[:1])
    assert cache.match(make_sequence(PROMPT)) == []


def test_a_convolution_goes_on_from_the_state_behind_the_last_block(cache, pool):
    sequence = make_sequence(PROMPT)
    sequence.block_table = pool.allocate(3)
    sequence.num_computed = 11
    sequence.conv_states = {1: "now"}
    sequence.snapshots = {4: {1: "after 4"}, 8: {1: "after 8"}}
    cache.keep(sequence)
    assert sequence.snapshots == {}
    for length, state in ((11, "after 8"), (7, "after 4")):
        other = make_sequence(PROMPT[:length])
        cache.claim(other, cache.match(other))
        assert other.conv_states == {1: state}


def test_without_such_a_state_a_block_is_not_kept(cache, pool):
    sequence = make_sequence(PROMPT)
    sequence.block_table = pool.allocate(3)
    sequence.num_computed = 11
    sequence.conv_states = {1: "now"}
    sequence.snapshots = {8: {1: "after 8"}}
    cache.keep(sequence)
    assert cache.match(make_sequence(PROMPT)) == []


def test_switched_off_nothing_is_known_or_counted(pool):
    cache = PrefixCache(pool, enabled=False)
    computed(cache, pool)
    assert cache.match(make_sequence(PROMPT)) == []
    assert cache.drain_counts() == (0, 0)


def test_counts_are_given_out_once(cache, pool):
    computed(cache, pool)
    computed(cache, pool)
    assert cache.drain_counts() == (22, 8)
    assert cache.drain_counts() == (0, 0)
