"""Gather and dequantise packed records in one pass: the plain forms of compiled kernels.

The formats are `engram_core.tables.records`'; a test holds every one to its definition there. One
kernel per format: with a switch between formats inside, none of them would be vectorised. Knows
bytes; knows no files and no tiers.

Arguments of all: `row_ids` int64 ``[n]``, checked by the caller; `data` the table's bytes, uint8,
flat; `per_page` records of `record_bytes` in each `page_bytes`; `out` bf16 words uint16
``[n, row_dim]``. Values are finite or the usual quiet NaN, so rounding never overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_FP8_BLOCK = 32
_TWO_TO_120 = np.float32(2.0**120)
# scale bytes with which every code, 2^-9 to 448, is a normal number in bf16
_FP8_LOWEST, _FP8_HIGHEST = 10, 246
_LINE_BYTES = 64


def touch_records(
    row_ids: Any, data: Any, per_page: int, page_bytes: int, record_bytes: int
) -> int:
    """Read a byte of every cache line of the records, so that the kernels below find them near.

    A processor waits for few rows at once while it also computes with them: the rest of its window
    is arithmetic. Here nearly all it does is wait, for many rows at the same time.

    Returns:
        A sum without a meaning: what nobody uses would not be read.
    """
    total = 0
    for index in range(row_ids.shape[0]):
        row = row_ids[index]
        start = row // per_page * page_bytes + row % per_page * record_bytes
        for place in range(start, start + record_bytes, _LINE_BYTES):
            total += data[place]
        total += data[start + record_bytes - 1]
    return total


def take_copied(
    row_ids: Any, data: Any, per_page: int, page_bytes: int, record_bytes: int, out: Any
) -> None:
    """16-bit payloads as they are."""
    copied = out.view(np.uint8)  # [n, 2 * row_dim]
    for index in range(out.shape[0]):
        row = row_ids[index]
        start = row // per_page * page_bytes + row % per_page * record_bytes
        record = data[start : start + record_bytes]  # loops over a slice can be vectorised
        target = copied[index]
        for i in range(record_bytes):
            target[i] = record[i]


def take_int8(
    row_ids: Any, data: Any, per_page: int, page_bytes: int, record_bytes: int, out: Any
) -> None:
    """Signed bytes with a float32 scale per row."""
    count, dim = out.shape
    word = np.empty(dim, np.uint32)
    value = word.view(np.float32)
    scale_word = np.empty(1, np.uint32)
    scale_value = scale_word.view(np.float32)
    for index in range(count):
        row = row_ids[index]
        start = row // per_page * page_bytes + row % per_page * record_bytes
        record = data[start : start + record_bytes]
        scale_word[0] = (
            np.uint32(record[dim])
            | np.uint32(np.uint32(record[dim + 1]) << np.uint32(8))
            | np.uint32(np.uint32(record[dim + 2]) << np.uint32(16))
            | np.uint32(np.uint32(record[dim + 3]) << np.uint32(24))
        )
        scale = scale_value[0]
        for i in range(dim):
            value[i] = np.float32(np.int8(record[i])) * scale
        target = out[index]
        for i in range(dim):
            odd = np.uint32((word[i] >> np.uint32(16)) & np.uint32(1))
            target[i] = np.uint16(np.uint32(word[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16))


def take_fp8(
    row_ids: Any,
    data: Any,
    per_page: int,
    page_bytes: int,
    record_bytes: int,
    scales: Any,
    out: Any,
) -> None:
    """e4m3 codes with a ue8m0 scale per 32 columns, whose values are `scales`, float32 ``[256]``.

    A code's seven low bits, moved up to bf16's exponent and mantissa, are its size once the
    exponent is rebased, and a scale is one more step of the exponent: integers all the way. Codes
    below 8 are subnormal; moved up further, until their highest bit reaches the exponent, they
    count like the others. Scales that would leave bf16's normal exponents take the longer way.
    """
    count, dim = out.shape
    word = np.empty(dim, np.uint32)
    value = word.view(np.float32)
    for index in range(count):
        row = row_ids[index]
        start = row // per_page * page_bytes + row % per_page * record_bytes
        record = data[start : start + record_bytes]
        target = out[index]
        for block in range(dim // _FP8_BLOCK):
            first = block * _FP8_BLOCK
            exponent = record[dim + block]
            if exponent >= _FP8_LOWEST and exponent <= _FP8_HIGHEST:
                moved = np.uint32(np.uint32(exponent) << np.uint32(7))
                for i in range(first, first + _FP8_BLOCK):
                    code = np.uint32(record[i])
                    size = np.uint32(code & np.uint32(0x7F))
                    bits = np.uint32(np.uint32(size << np.uint32(4)) - np.uint32(7 << 7))
                    below_8 = np.uint32(np.uint32(size << np.uint32(5)) - np.uint32(8 << 7))
                    bits = below_8 if size < np.uint32(8) else bits
                    below_4 = np.uint32(np.uint32(size << np.uint32(6)) - np.uint32(9 << 7))
                    bits = below_4 if size < np.uint32(4) else bits
                    below_2 = np.uint32(np.uint32(size << np.uint32(7)) - np.uint32(10 << 7))
                    bits = below_2 if size < np.uint32(2) else bits
                    bits = np.uint32(bits + moved)
                    bits = np.uint32(0x7FC0) if size == np.uint32(0x7F) else bits
                    bits = np.uint32(0) if size == np.uint32(0) else bits
                    sign = np.uint32(np.uint32(code & np.uint32(0x80)) << np.uint32(8))
                    target[i] = np.uint16(bits | sign)
                continue
            scale = scales[exponent]
            for i in range(first, first + _FP8_BLOCK):
                code = np.uint32(record[i])
                size = np.uint32(code & np.uint32(0x7F))
                bits = np.uint32(size << np.uint32(20))
                bits = np.uint32(0x7FC00000) if size == np.uint32(0x7F) else bits
                sign = np.uint32(np.uint32(code & np.uint32(0x80)) << np.uint32(24))
                word[i] = np.uint32(bits | sign)
            for i in range(first, first + _FP8_BLOCK):
                value[i] = value[i] * _TWO_TO_120 * scale
            for i in range(first, first + _FP8_BLOCK):
                odd = np.uint32((word[i] >> np.uint32(16)) & np.uint32(1))
                target[i] = np.uint16(np.uint32(word[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16))


def take_int4(
    row_ids: Any, data: Any, per_page: int, page_bytes: int, record_bytes: int, out: Any
) -> None:
    """Nibbles 1 to 15 for codes -7 to 7, even columns low, with a float16 scale per row."""
    count, dim = out.shape
    half = dim // 2
    word = np.empty(dim, np.uint32)
    value = word.view(np.float32)
    scale_word = np.empty(1, np.uint32)
    scale_value = scale_word.view(np.float32)
    for index in range(count):
        row = row_ids[index]
        start = row // per_page * page_bytes + row % per_page * record_bytes
        record = data[start : start + record_bytes]
        bits = np.uint32(record[half]) | np.uint32(np.uint32(record[half + 1]) << np.uint32(8))
        # the scale is normal and positive: its bits move, the exponent is rebased
        scale_word[0] = np.uint32(
            np.uint32(bits << np.uint32(13)) + np.uint32(np.uint32(112) << np.uint32(23))
        )
        scale = scale_value[0]
        for i in range(half):
            pair = np.int32(record[i])
            value[2 * i] = np.float32((pair & 15) - 8) * scale
            value[2 * i + 1] = np.float32((pair >> 4) - 8) * scale
        target = out[index]
        for i in range(dim):
            odd = np.uint32((word[i] >> np.uint32(16)) & np.uint32(1))
            target[i] = np.uint16(np.uint32(word[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16))
