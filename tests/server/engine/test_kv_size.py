"""KV blocks: what the settings ask for, refused with both sizes when the memory is not there."""

import pytest
import torch

from engram_core.errors import ConfigError
from server.engine.kv_cache import LayerShape
from server.engine.kv_size import bytes_per_block, plan_blocks
from server.engine.limits import EngineLimits

SHAPES = [LayerShape(2, 8, 8), LayerShape(2, 8, 4)]
BLOCK_BYTES = 8 * 2 * (2 * 16 + 2 * 12)  # 8 tokens of 2-byte numbers


def plan(**limits):
    known = {"max_num_seqs": 3, "max_model_len": 20, "block_size": 8}
    return plan_blocks(SHAPES, torch.bfloat16, EngineLimits(**{**known, **limits}))


def test_bytes_of_a_block():
    assert bytes_per_block(SHAPES, torch.bfloat16, 8) == BLOCK_BYTES


def test_by_default_every_sequence_has_room_for_its_longest():
    assert plan() == 3 * 3


def test_a_budget_buys_whole_blocks_beside_the_padding():
    assert plan(kv_cache_bytes=BLOCK_BYTES * 6 + 5) == 5


@pytest.mark.parametrize("budget", [1, BLOCK_BYTES, 2 * BLOCK_BYTES - 1])
def test_a_budget_without_a_block_is_refused(budget):
    with pytest.raises(ConfigError, match=f"kv_cache_bytes is {budget}; .*{2 * BLOCK_BYTES}"):
        plan(kv_cache_bytes=budget)


def test_more_than_there_is_memory_is_refused_with_both_sizes():
    needed = 10 * BLOCK_BYTES
    assert plan(free_memory_bytes=needed) == 9
    with pytest.raises(ConfigError, match=f"need {needed} bytes and {needed - 1} are free"):
        plan(free_memory_bytes=needed - 1)
