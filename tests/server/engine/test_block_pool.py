"""Blocks are handed out once, never block 0, and come back once."""

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
