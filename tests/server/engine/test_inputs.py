"""The packed tensors of a step: ids, positions, slots, rows of logits, padded block tables."""

import pytest
import torch
from sequences import make_sequence

from server.engine.batch import Batch, Span
from server.engine.inputs import InputBuilder
from server.engine.kv_cache import KVCache, LayerShape
from server.engine.limits import EngineLimits

BLOCK = 4


@pytest.fixture
def builder():
    limits = EngineLimits(
        max_num_seqs=4, max_num_batched_tokens=32, max_model_len=40, block_size=BLOCK
    )
    cache = KVCache([LayerShape(1, 2, 2)], 20, BLOCK, torch.float32, torch.device("cpu"))
    return InputBuilder(limits, cache, torch.device("cpu"))


def sequence(length, blocks, **rest):
    made = make_sequence(range(100, 100 + length), **rest)
    made.block_table = blocks
    return made


def decode_of(made):
    made.token_ids.append(7)
    made.num_computed = made.num_tokens - 1
    return Span(made, made.num_computed, 1)


def test_decodes_and_chunks_are_laid_out_one_behind_the_other(builder):
    decode = decode_of(sequence(5, [9, 3]))
    chunk = Span(sequence(11, [2, 8, 5]), 3, 4)
    last = Span(sequence(6, [4, 1]), 4, 2)
    inputs = builder.build(Batch((decode, chunk, last), 1))
    assert inputs.input_ids.tolist() == [[7, 103, 104, 105, 106, 104, 105]]
    assert inputs.position_ids.tolist() == [[5, 3, 4, 5, 6, 4, 5]]
    slots = [3 * 4 + 1, 2 * 4 + 3, 8 * 4, 8 * 4 + 1, 8 * 4 + 2, 1 * 4, 1 * 4 + 1]
    assert inputs.attention.slots.tolist() == slots
    assert inputs.logit_rows.tolist() == [0, 6]  # the chunk in the middle chooses no token
    assert inputs.rows == (slice(0, 1), slice(1, 1), slice(1, 2))


def test_tables_are_padded_with_block_zero_whatever_stood_there_before(builder):
    long = decode_of(sequence(14, [9, 3, 6, 7]))
    builder.build(Batch((long, long), 2))
    short = decode_of(sequence(2, [5]))
    inputs = builder.build(Batch((short, long), 2))
    assert inputs.attention.decode.blocks.tolist() == [5, 0, 0, 0, 9, 3, 6, 7]
    assert inputs.attention.decode.lengths.tolist() == [3, 15]


def test_all_rows_of_a_judged_prompt_meet_the_head(builder):
    judged = Span(sequence(6, [4, 1], prompt_logprobs=True), 0, 6)
    other = Span(sequence(3, [2]), 0, 3)
    inputs = builder.build(Batch((judged, other), 0))
    assert inputs.logit_rows.tolist() == [0, 1, 2, 3, 4, 5, 8]
