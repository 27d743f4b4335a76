"""A whole decoder layer: seven phases that a team computes together, a barrier behind each.

    norm | query, key, value | positions and cache | attention | output | norm | gate, up | down

Intermediate numbers are float32; what is multiplied is bfloat16. Every thread runs this same code
and takes pieces of a phase from the team's queue.
"""

from __future__ import annotations

from numba import carray

from server.engine.native.attention import attend, store_token
from server.engine.native.compiling import compiled
from server.engine.native.formats import LANES
from server.engine.native.intrinsics import int_pointer, memory
from server.engine.native.matmul import CHUNK, multiply
from server.engine.native.panels import by_panels
from server.engine.native.records import SPAN
from server.engine.native.teamwork import barrier, take
from server.engine.native.vectors import (
    add_bias,
    add_part_bias,
    add_residual,
    add_to,
    floats,
    gated_silu,
    halves,
    norm_head,
    norm_row,
    rotate,
    to_bf16,
    to_floats,
)


@compiled
def run_layer(job, layer, shape, state, threads, scratch):
    """One layer over ``job.num_rows`` packed tokens; ``scratch`` is this thread's own."""
    _norm_rows(job, layer, shape, state)
    barrier(state, threads)
    _project(job, layer, state, scratch)
    barrier(state, threads)
    _place(job, layer, shape, state)
    barrier(state, threads)
    _attend(job, layer, shape, state, scratch)
    barrier(state, threads)
    _output(job, layer.output, job.context, shape.hidden, state, scratch)
    barrier(state, threads)
    _norm_residual(job, layer, shape, state)
    barrier(state, threads)
    _gate_up(job, layer.gate_up, job.normed, shape.intermediate, state, scratch)
    barrier(state, threads)
    _down(job, layer.down, job.activated, shape.hidden, state, scratch)
    barrier(state, threads)


@compiled
def _norm_rows(job, layer, shape, state):
    """Hidden -> residual (float32) and its norm."""
    size = shape.hidden
    weight = floats(layer.input_norm, size)
    row = take(state)
    while row < job.num_rows:
        hidden = halves(job.hidden + row * size * 2, size)
        residual = floats(job.residual + row * size * 4, size)
        to_floats(hidden, size, residual)
        norm_row(residual, weight, size, layer.input_eps, halves(job.normed + row * size * 2, size))
        row = take(state)


@compiled
def _project(job, layer, state, scratch):
    """Normed -> qkv, float32."""
    weight = layer.qkv
    stride = weight.num_blocks * LANES * 4
    first = take(state) * CHUNK
    while first < weight.num_blocks:
        count = min(CHUNK, weight.num_blocks - first)
        out = job.qkv + first * LANES * 4
        multiply(weight, first, count, job.num_rows, job.normed, out, stride, scratch)
        first = take(state) * CHUNK


@compiled
def _place(job, layer, shape, state):
    """Give queries and keys their positions; store keys and values."""
    dim, heads, kv_heads = shape.head_dim, shape.num_heads, shape.num_kv_heads
    group = heads // kv_heads
    size = (heads + 2 * kv_heads) * dim
    slots = carray(int_pointer(job.slots), (job.num_rows,))
    row = take(state)
    while row < job.num_rows:
        start = job.qkv + row * size * 4
        add_bias(floats(start, size), layer.qkv.bias, size)
        cos = halves(job.cos + row * shape.rotary_dim * 2, shape.rotary_dim)
        sin = halves(job.sin + row * shape.rotary_dim * 2, shape.rotary_dim)
        for head in range(heads):
            query = floats(start + head * dim * 4, dim)
            _position(query, layer.query_norm, layer.head_eps, dim, cos, sin, shape.rotary_dim)
            place = ((head // group) * job.num_rows + row) * group + head % group
            to_bf16(query, dim, halves(job.query + place * dim * 2, dim))
        for head in range(kv_heads):
            key = floats(start + (heads + head) * dim * 4, dim)
            value = floats(start + (heads + kv_heads + head) * dim * 4, dim)
            _position(key, layer.key_norm, layer.head_eps, dim, cos, sin, shape.rotary_dim)
            store_token(layer.keys, layer.values, shape, slots[row], head, key, value)
        row = take(state)


@compiled
def _position(head, norm, eps, dim, cos, sin, rotary_dim):
    if norm != 0:
        norm_head(head, floats(norm, dim), dim, eps)
    rotate(head, cos, sin, rotary_dim)


@compiled
def _attend(job, layer, shape, state, scratch):
    """Query and cache -> context; a piece is one key head of some tokens of a sequence."""
    units = carray(int_pointer(job.units), (job.num_units, 3))
    spans = carray(memory(job.spans), (job.num_units,), SPAN)
    piece = take(state)
    while piece < job.num_units * shape.num_kv_heads:
        unit, head = units[piece // shape.num_kv_heads], piece % shape.num_kv_heads
        attend(
            layer,
            shape,
            spans[unit[0]],
            unit[1],
            unit[2],
            head,
            job.query,
            job.context,
            job.num_rows,
            scratch,
        )
        piece = take(state)


@compiled
def _norm_residual(job, layer, shape, state):
    """Residual -> its norm."""
    size = shape.hidden
    weight = floats(layer.post_norm, size)
    row = take(state)
    while row < job.num_rows:
        residual = floats(job.residual + row * size * 4, size)
        norm_row(residual, weight, size, layer.post_eps, halves(job.normed + row * size * 2, size))
        row = take(state)


@compiled
def _add_output(job, weight, size, row, column, count, sums):
    """Residual += context x output, for some columns of a row."""
    part = floats(sums, count)
    add_part_bias(part, weight.bias, column, count)
    add_to(floats(job.residual + (row * size + column) * 4, count), part, count)


@compiled
def _activate(job, weight, size, row, column, count, sums):
    """Activated = SiLU(gate) * up; blocks of both alternate."""
    for pair in range(count // (2 * LANES)):
        at = sums + pair * 2 * LANES * 4
        place = row * size + column // 2 + pair * LANES
        out = halves(job.activated + place * 2, LANES)
        gated_silu(floats(at, LANES), floats(at + LANES * 4, LANES), LANES, out)


@compiled
def _add_down(job, weight, size, row, column, count, sums):
    """Hidden = residual + activated x down, for some columns of a row."""
    at = row * size + column
    residual = floats(job.residual + at * 4, count)
    add_residual(floats(sums, count), residual, count, halves(job.hidden + at * 2, count))


_output, _gate_up, _down = by_panels(_add_output), by_panels(_activate), by_panels(_add_down)
