"""Attention over blocks equals attention written out, for windows, groups, caps and chunks."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from server.engine.attention import AttentionOptions
from server.engine.attention_batch import AttentionBatch, DecodePart, PrefillPart
from server.engine.kv_cache import KVCache, LayerShape

HEADS, KV_HEADS, DIM, VALUE_DIM, BLOCK = 4, 2, 8, 6, 4


def written_out(query, key, value, options):
    """[heads, tokens, dim], all keys of one sequence -> [tokens, heads, value_dim]."""
    tokens, keys = query.shape[1], key.shape[1]
    group = HEADS // KV_HEADS
    scores = query @ key.repeat_interleave(group, 0).mT
    scores = scores * (DIM**-0.5 if options.scaling is None else options.scaling)
    if options.softcap:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    for row in range(tokens):
        last = keys - tokens + row
        for column in range(keys):
            old = options.sliding_window is not None and column <= last - options.sliding_window
            if column > last or old:
                scores[:, row, column] = float("-inf")
    return (scores.softmax(-1) @ value.repeat_interleave(group, 0)).transpose(0, 1)


class Run:
    """A sequence with random queries, keys and values, and the blocks it owns."""

    def __init__(self, length, blocks, generator):
        def filled(heads, dim):
            return torch.randn(heads, length, dim, generator=generator)

        self.length, self.blocks = length, blocks
        self.query, self.key = filled(HEADS, DIM), filled(KV_HEADS, DIM)
        self.value = filled(KV_HEADS, VALUE_DIM)

    def slots(self, start, stop):
        return [self.blocks[place // BLOCK] * BLOCK + place % BLOCK for place in range(start, stop)]

    def part(self, start, stop):
        return tuple(tensor[:, start:stop] for tensor in (self.query, self.key, self.value))

    def expected(self, start, stop, options):
        query, key, value = self.query[:, start:stop], self.key[:, :stop], self.value[:, :stop]
        return written_out(query, key, value, options)


def attend(cache, decodes, prefills, options):
    """Runs with their (start, stop): one token for decodes."""
    spans = [(run, start, start + 1) for run, start in decodes] + prefills
    slots = [slot for run, start, stop in spans for slot in run.slots(start, stop)]
    decode = None
    if decodes:
        width = max(start for _, start in decodes) // BLOCK + 1
        tables = [(run.blocks + [0] * width)[:width] for run, _ in decodes]
        lengths = [start + 1 for _, start in decodes]
        decode = DecodePart(torch.tensor(tables).flatten(), torch.tensor(lengths))
    parts, row = [], len(decodes)
    for run, start, stop in prefills:
        parts.append(PrefillPart(row, stop - start, start, torch.tensor(run.blocks)))
        row += stop - start
    batch = AttentionBatch(cache, torch.tensor(slots), decode, parts)
    packed = [
        torch.cat(each, 1) for each in zip(*(run.part(a, b) for run, a, b in spans), strict=True)
    ]
    return batch.attend(0, *packed, options)


@given(
    seed=st.integers(0, 999),
    cut=st.integers(1, 10),
    window=st.sampled_from([None, 1, 3, 5, 100]),
    softcap=st.sampled_from([None, 2.0]),
    scaling=st.sampled_from([None, 0.7]),
)
def test_chunks_and_decodes_equal_attention_written_out(seed, cut, window, softcap, scaling):
    generator = torch.Generator().manual_seed(seed)
    options = AttentionOptions(scaling, window, softcap)
    cache = KVCache([LayerShape(KV_HEADS, DIM, VALUE_DIM)], 9, BLOCK, torch.float32, "cpu")
    first, second = Run(11, [7, 2, 5], generator), Run(9, [1, 9, 3], generator)
    steps = [
        ([], [(first, 0, cut)]),
        ([], [(second, 0, 8), (first, cut, 10)][: 1 if cut == 10 else 2]),
        ([(first, 10), (second, 8)], []),
    ]
    for decodes, prefills in steps:
        out = attend(cache, decodes, prefills, options)
        spans = [(run, start, start + 1) for run, start in decodes] + prefills
        expected = torch.cat([run.expected(a, b, options) for run, a, b in spans])
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_decodes_beside_a_prefill_keep_their_rows_apart():
    generator = torch.Generator().manual_seed(1)
    options = AttentionOptions()
    cache = KVCache([LayerShape(KV_HEADS, DIM, VALUE_DIM)], 9, BLOCK, torch.float32, "cpu")
    first, second = Run(6, [7, 2], generator), Run(9, [1, 9, 3], generator)
    attend(cache, [], [(first, 0, 5)], options)
    out = attend(cache, [(first, 5)], [(second, 0, 9)], options)
    expected = [first.expected(5, 6, options), second.expected(0, 9, options)]
    torch.testing.assert_close(out, torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_block_zero_stays_zero_and_cleared_blocks_are_zero():
    cache = KVCache([LayerShape(1, 2, 2)], 3, BLOCK, torch.float32, "cpu")
    slots = torch.arange(BLOCK, 4 * BLOCK)
    cache.write(0, slots, torch.ones(12, 1, 2), torch.full((12, 1, 2), float("nan")))
    cache.clear([1, 3])
    assert [bool(block.any()) for block in cache.keys[0]] == [False, False, True, False]
    assert [bool(block.isnan().any()) for block in cache.values[0]] == [False, False, True, False]
