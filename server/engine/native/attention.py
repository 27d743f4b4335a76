"""Attention over the paged cache: queries of one key head, some tokens of one sequence.

Keys and values lie in the cache as tiles of 16 tokens, packed like weights: scores are a product
of queries with a tile of keys, the answer one of probabilities with a tile of values.

    keys    [block][head][tile][dim / 2][16 tokens][2]
    values  [block][head][tile][dim / 16][8][16 dims][2 tokens]

Keys are taken 64 at a time from multiples of 64 on, with a running maximum. What a token gets
depends on its position and its keys alone, not on the chunk that it came in nor on other sequences.
"""

from __future__ import annotations

import numpy as np
from numba import carray, float32

from server.engine.native.compiling import compiled
from server.engine.native.intrinsics import bf16_pointer, int_pointer, narrow
from server.engine.native.tile import make_tile
from server.engine.native.vectors import LOG2_E, floats, halves, power_of_two

TILE = 16  # keys
CHUNK_KEYS = 64
_CHUNK_TILES = CHUNK_KEYS // TILE
_MINUS_INFINITY = np.float32(-np.inf)

_tile_8x1, _tile_8x2 = make_tile("bf16", 8, 1), make_tile("bf16", 8, 2)
_tile_4x1, _tile_4x4 = make_tile("bf16", 4, 1), make_tile("bf16", 4, 4)


@compiled
def store_token(cache_keys, cache_values, shape, slot, head, key, value):
    """Write one token's key and value of one head, float32 arrays, as bfloat16."""
    dim, tiles = shape.head_dim, shape.block_tiles
    tile_bytes = dim * TILE * 2
    block, place = slot // (tiles * TILE), slot % (tiles * TILE)
    tile, lane = place // TILE, place % TILE
    start = block * shape.block_bytes + (head * tiles + tile) * tile_bytes
    keys = carray(bf16_pointer(cache_keys + start), (dim // 2, TILE, 2))
    values = carray(bf16_pointer(cache_values + start), (dim // TILE, TILE // 2, TILE, 2))
    for i in range(dim // 2):
        keys[i, lane, 0] = narrow(key[2 * i])
        keys[i, lane, 1] = narrow(key[2 * i + 1])
    for i in range(dim // TILE):
        for j in range(TILE):
            values[i, lane // 2, j, lane % 2] = narrow(value[i * TILE + j])


@compiled
def _products(table, blocks, rows, x, x_stride, pairs, out, out_stride, keep):
    """Rows (a multiple of 4) times up to 4 blocks."""
    row = 0
    while row + 8 <= rows:
        at_x, at_out = x + row * x_stride, out + row * out_stride
        done = 0
        while done + 2 <= blocks:
            _tile_8x2(table + 8 * done, at_x, x_stride, pairs, at_out + 64 * done, out_stride, keep)
            done += 2
        if done < blocks:
            _tile_8x1(table + 8 * done, at_x, x_stride, pairs, at_out + 64 * done, out_stride, keep)
        row += 8
    if row < rows:
        at_x, at_out = x + row * x_stride, out + row * out_stride
        if blocks == 4:
            _tile_4x4(table, at_x, x_stride, pairs, at_out, out_stride, keep)
        else:
            for done in range(blocks):
                _tile_4x1(
                    table + 8 * done, at_x, x_stride, pairs, at_out + 64 * done, out_stride, keep
                )


@compiled
def _soften(scores, probabilities, out, dim, state, first, stop, scaling, width):
    """One row's scores of a chunk -> probabilities so far; rescales what was summed before.

    Args:
        scores: float32 [64]; probabilities: bfloat16 [64].
        out: float32 [dim], the sum of values so far.
        state: float32 [2 + 16]: the maximum (in powers of two), the sum, and room for 16 lanes.
        first, stop: the keys that the row sees.
        scaling: of the scores. width: keys of the chunk that exist.
    """
    if stop <= first:
        for i in range(width):
            probabilities[i] = 0
        return
    for i in range(first):
        scores[i] = _MINUS_INFINITY
    for i in range(stop, CHUNK_KEYS):
        scores[i] = _MINUS_INFINITY
    top = _scale_to_maximum(scores, float32(scaling) * LOG2_E, state[0], state[2:])
    total = float32(0.0)
    for i in range(CHUNK_KEYS):
        weight = power_of_two(scores[i] - top)
        total += weight
        probabilities[i] = narrow(weight)
    shrink = power_of_two(state[0] - top)
    if state[0] != top:
        for i in range(dim):
            out[i] *= shrink
    state[0], state[1] = top, state[1] * shrink + total


@compiled
def _scale_to_maximum(scores, factor, top, lanes):
    """Scale a chunk's scores; the maximum of them and ``top``. NaN shows in the weights instead."""
    for j in range(TILE):
        lanes[j] = _MINUS_INFINITY
    for k in range(_CHUNK_TILES):
        for j in range(TILE):
            score = scores[k * TILE + j] * factor
            scores[k * TILE + j] = score
            lanes[j] = score if score > lanes[j] else lanes[j]
    for j in range(TILE):
        top = lanes[j] if lanes[j] > top else top
    return top


@compiled
def attend(layer, shape, span, first, count, head, query, context, num_rows, scratch):
    """Attention of some tokens of a span for the queries of one key head.

    Args:
        layer, shape, span: records.
        first, count: tokens of the span.
        head: of keys and values.
        query: address of bfloat16 [kv heads][rows][queries per key head][dim].
        context: address of bfloat16 [rows][heads * dim], the answer.
        num_rows: tokens of the step.
        scratch: address; see `attention_scratch_bytes`.
    """
    dim, group = shape.head_dim, shape.num_heads // shape.num_kv_heads
    rows = count * group
    padded = (rows + 3) // 4 * 4
    table = scratch
    scores = table + 64
    probabilities = scores + padded * CHUNK_KEYS * 4
    sums = probabilities + padded * CHUNK_KEYS * 2
    states = sums + padded * dim * 4
    _clear(sums, states, padded, dim)
    queries = query + ((head * num_rows + span.row + first) * group) * dim * 2
    position = span.position + first
    last = position + count - 1
    oldest = max(0, position - layer.window + 1) if layer.window > 0 else 0
    for chunk in range(oldest // CHUNK_KEYS, last // CHUNK_KEYS + 1):
        tiles = min(last // TILE - chunk * _CHUNK_TILES + 1, _CHUNK_TILES)
        _tile_addresses(layer.keys, shape, span, chunk, tiles, head, table)
        _products(table, tiles, padded, queries, dim * 2, dim // 2, scores, CHUNK_KEYS * 4, 0)
        for row in range(rows):
            own = position + row // group - chunk * CHUNK_KEYS
            begin = max(0, own - layer.window + 1) if layer.window > 0 else 0
            _soften(
                floats(scores + row * CHUNK_KEYS * 4, CHUNK_KEYS),
                halves(probabilities + row * CHUNK_KEYS * 2, CHUNK_KEYS),
                floats(sums + row * dim * 4, dim),
                dim,
                floats(states + row * 128, 2 + TILE),
                begin,
                min(own + 1, CHUNK_KEYS),
                layer.scaling,
                tiles * TILE,
            )
        _add_values(layer, shape, span, chunk, tiles, head, table, probabilities, padded, sums)
    _answer(shape, span.row + first, count, head, sums, states, context)


@compiled
def _clear(sums, states, rows, dim):
    totals = floats(sums, rows * dim)
    for i in range(rows * dim):
        totals[i] = float32(0.0)
    for row in range(rows):
        state = floats(states + row * 128, 2)
        state[0], state[1] = _MINUS_INFINITY, float32(0.0)


@compiled
def _tile_addresses(cache, shape, span, chunk, tiles, head, table):
    """Write where a head's tiles of a chunk lie."""
    addresses = carray(int_pointer(table), (_CHUNK_TILES,))
    tile_bytes = shape.head_dim * TILE * 2
    for i in range(tiles):
        tile = chunk * _CHUNK_TILES + i
        block = tile // shape.block_tiles
        number = carray(int_pointer(span.blocks + 8 * block), (1,))[0]
        within = head * shape.block_tiles + tile % shape.block_tiles
        addresses[i] = cache + number * shape.block_bytes + within * tile_bytes


@compiled
def _add_values(layer, shape, span, chunk, tiles, head, table, probabilities, rows, sums):
    """Sums += probabilities x values, tile by tile."""
    dim = shape.head_dim
    columns = carray(int_pointer(table), (8,))
    piece = TILE * TILE * 2  # bytes of 16 dims of a tile
    for i in range(tiles):
        _tile_addresses(layer.values, shape, span, chunk, tiles, head, table)
        start = columns[i]
        for done in range(0, dim // TILE, 4):
            count = min(4, dim // TILE - done)
            for j in range(count):
                columns[j] = start + (done + j) * piece
            _products(
                table,
                count,
                rows,
                probabilities + i * TILE * 2,
                CHUNK_KEYS * 2,
                TILE // 2,
                sums + done * TILE * 4,
                dim * 4,
                1,
            )


@compiled
def _answer(shape, row, count, head, sums, states, context):
    dim, heads = shape.head_dim, shape.num_heads
    group = heads // shape.num_kv_heads
    for i in range(count * group):
        token, query = i // group, head * group + i % group
        total = floats(sums + i * dim * 4, dim)
        state = floats(states + i * 128, 2)
        share = float32(1.0) / state[1]
        out = halves(context + ((row + token) * heads + query) * dim * 2, dim)
        for j in range(dim):
            out[j] = narrow(total[j] * share)


def attention_scratch_bytes(rows: int, dim: int) -> int:
    """What `attend` needs for so many queries."""
    padded = (rows + 3) // 4 * 4
    return 64 + padded * (CHUNK_KEYS * 6 + dim * 4 + 128)
