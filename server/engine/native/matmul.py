"""Products of a few or many rows with a packed weight, tile by tile.

A chunk of neighbouring blocks is one thread's work; within it weights are read once and stay in
the cache while all rows pass by. Rows are taken eight at a time, the rest in fours, twos and ones:
a row's result is the same in each (see `tile`).
"""

from __future__ import annotations

from typing import Any

from numba import carray

from server.engine.native.compiling import compiled
from server.engine.native.intrinsics import int_pointer
from server.engine.native.tile import make_tile

CHUNK = 6  # blocks that one thread takes at a time
BF16, INT8, INT4 = range(3)  # numbers of `formats.FORMATS`

# rows -> blocks that meet them at once: as many as the vector registers hold
_BLOCKS = {
    "bf16": {8: 3, 4: 6, 2: 6, 1: 6},
    "int8": {8: 3, 4: 3, 2: 6, 1: 6},
    "int4": {8: 1, 4: 2, 2: 3, 1: 3},
}


def _passing(form: str, rows: int) -> Any:
    """A function that passes ``rows`` rows by ``count`` blocks."""
    width = _BLOCKS[form][rows]
    many, last = make_tile(form, rows, width), make_tile(form, rows, 1)

    @compiled
    def passing(table, count, x, stride, pairs, out, out_stride):
        done = 0
        while done + width <= count:
            many(table + 8 * done, x, stride, pairs, out + 64 * done, out_stride, 0)
            done += width
        while done < count:
            last(table + 8 * done, x, stride, pairs, out + 64 * done, out_stride, 0)
            done += 1

    return passing


def _product(form: str) -> Any:
    """A function that passes any number of rows by ``count`` blocks."""
    pass_8, pass_4, pass_2, pass_1 = (_passing(form, rows) for rows in (8, 4, 2, 1))

    @compiled
    def product(table, count, rows, x, stride, pairs, out, out_stride):
        row = 0
        while row + 8 <= rows:
            pass_8(
                table, count, x + row * stride, stride, pairs, out + row * out_stride, out_stride
            )
            row += 8
        if row + 4 <= rows:
            pass_4(
                table, count, x + row * stride, stride, pairs, out + row * out_stride, out_stride
            )
            row += 4
        if row + 2 <= rows:
            pass_2(
                table, count, x + row * stride, stride, pairs, out + row * out_stride, out_stride
            )
            row += 2
        if row < rows:
            pass_1(
                table, count, x + row * stride, stride, pairs, out + row * out_stride, out_stride
            )

    return product


_product_bf16, _product_int8, _product_int4 = (_product(form) for form in _BLOCKS)


@compiled
def multiply(weight, first, count, rows, x, out, out_stride, table):
    """Rows times some blocks of a weight: float32, one row every ``out_stride`` bytes.

    Args:
        weight: a record of `records.WEIGHT`.
        first, count: which blocks; at most `CHUNK`.
        rows, x: how many rows, and the address of their bfloat16 numbers, one behind the other.
        out, out_stride: address of the first row's first number.
        table: address of `CHUNK` int64s to write to.
    """
    addresses = carray(int_pointer(table), (CHUNK,))
    for block in range(count):
        addresses[block] = weight.data + (first + block) * weight.block_bytes
    pairs = weight.num_inputs // 2
    stride = 2 * weight.num_inputs
    if weight.form == BF16:
        _product_bf16(table, count, rows, x, stride, pairs, out, out_stride)
    elif weight.form == INT8:
        _product_int8(table, count, rows, x, stride, pairs, out, out_stride)
    else:
        _product_int4(table, count, rows, x, stride, pairs, out, out_stride)
