"""Blocks are handed out once, never block 0, come back once, and may be shared and kept."""

import pytest

from server.engine.block_pool import BlockPool


def test_all_blocks_but_the_padding_are_handed_out():
    pool = BlockPool(5, 8)
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]
    assert (pool.num_free, pool.num_used) == (0, 5)


def test_asking_for_too_many_takes_none():
    pool = BlockPool(3, 8)
    with pytest.raises(ValueError, match="4 KV blocks asked for, 3 are free"):
        pool.allocate(4)
    assert pool.num_free == 3


@pytest.mark.parametrize("blocks", [[0], [2]])
def test_what_was_not_handed_out_is_not_taken_back(blocks):
    pool = BlockPool(3, 8)
    pool.release(pool.allocate(3)[1:])
    with pytest.raises(ValueError, match="was not handed out"):
        pool.release(blocks)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (8, 1), (9, 2)])
def test_blocks_for(tokens, blocks):
    assert BlockPool(3, 8).blocks_for(tokens) == blocks


def kept_chain(pool, count):
    """Blocks of one sequence, all kept under their place, let go of."""
    blocks = pool.allocate(count)
    for place, block in enumerate(blocks):
        pool.keep(block, bytes([place]), companion=place)
    pool.release(blocks)
    return blocks


def test_a_kept_block_is_free_and_can_be_found_again():
    pool = BlockPool(4, 8)
    first, second = kept_chain(pool, 2)
    assert (pool.num_used, pool.num_free, pool.num_idle) == (0, 4, 2)
    assert pool.find(b"\1") == second
    assert pool.companion(second) == 1
    pool.share([first])
    assert (pool.num_used, pool.num_idle, pool.holders(first)) == (1, 1, 1)


def test_a_shared_block_stays_until_its_last_holder_lets_go():
    pool = BlockPool(2, 8)
    [block] = kept_chain(pool, 1)
    pool.share([block])
    pool.share([block])
    assert pool.release([block]) == []
    assert pool.release([block]) == [block]
    with pytest.raises(ValueError, match="was not handed out"):
        pool.release([block])


def test_free_blocks_go_first_then_the_end_of_what_went_unused_for_longest():
    pool = BlockPool(5, 8)
    blocks = kept_chain(pool, 3)
    pool.allocate(2)
    assert pool.num_idle == 3
    pool.share(blocks[:1])
    pool.release(blocks[:1])  # used again
    assert pool.allocate(1) == [blocks[2]]
    assert pool.allocate(1) == [blocks[1]]
    assert (pool.find(b"\0"), pool.find(b"\1"), pool.find(b"\2")) == (blocks[0], None, None)


def test_held_blocks_are_never_evicted():
    pool = BlockPool(3, 8)
    blocks = kept_chain(pool, 2)
    pool.share(blocks)
    assert pool.num_free == 1
    pool.allocate(1)
    with pytest.raises(ValueError, match="1 KV blocks asked for, 0 are free"):
        pool.allocate(1)
    assert pool.find(b"\0") == blocks[0]


def test_forgotten_blocks_are_not_found_and_can_be_handed_out():
    pool = BlockPool(2, 8)
    idle, held = kept_chain(pool, 2)
    pool.share([held])
    pool.forget([idle, held])
    assert (pool.find(b"\0"), pool.find(b"\1"), pool.num_idle) == (None, None, 0)
    assert pool.allocate(1) == [idle]
    pool.forget([idle])  # nothing to forget
    assert pool.release([held]) == [held]


def test_the_same_content_is_kept_once():
    pool = BlockPool(3, 8)
    first, second, third = pool.allocate(3)
    pool.keep(first, b"k")
    pool.keep(second, b"k")
    assert pool.find(b"k") == first
    pool.release([second])
    assert pool.num_idle == 0
    with pytest.raises(ValueError, match="under another key"):
        pool.keep(first, b"other")
    pool.keep(third, b"other")
    assert pool.find(b"other") == third


def test_only_what_is_held_is_kept_or_shared():
    pool = BlockPool(2, 8)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.keep(1, b"k")
    with pytest.raises(ValueError, match="holds nothing"):
        pool.share([1])
