"""Row-wise arithmetic of a decoder layer in float32: norms, rotary positions, activations.

Loops over plain arrays, which the compiler turns into vector code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, float32, int32, uint32

from server.engine.native.compiling import compiled
from server.engine.native.intrinsics import (
    bf16_pointer,
    float_of_bits,
    float_pointer,
    narrow,
    widen,
)

LOG2_E = np.float32(1.4426950408889634)
_MINUS_INFINITY = np.float32(-np.inf)
_LANES = 64
_LEAST = np.float32(-126.0)  # of a power of two in float32
# 2^f for |f| <= 1/2, relative error below 2e-7 (Taylor of exp(f ln 2), seven terms)
_C = [np.float32(c) for c in (
    1.0, 0.6931471805599453, 0.2402265069591007, 0.05550410866482158,
    0.009618129107628477, 0.0013333558146428443, 0.00015403530393381608,
)]  # fmt: skip
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = _C


@compiled(inline="always")
def power_of_two(exponent: Any) -> Any:
    """2 to a float32; 0 below the smallest normal number, NaN stays NaN."""
    x = float32(exponent)
    bounded = _LEAST if x < _LEAST else (float32(126.0) if x > float32(126.0) else x)
    nearest = int32(bounded + (float32(0.5) if bounded > float32(0.0) else float32(-0.5)))
    f = bounded - float32(nearest)
    series = _C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    whole = float_of_bits(uint32(uint32(nearest + int32(127)) << uint32(23)))
    return float32(0.0) if x < _LEAST else series * whole


@compiled
def inverse_rms(x, size, eps):
    """1 / sqrt(mean of squares + eps) of a float32 array."""
    total = float32(0.0)
    for i in range(size):
        total += x[i] * x[i]
    return float32(1.0) / np.sqrt(total / float32(size) + float32(eps))


@compiled
def norm_row(x, weight, size, eps, out):
    """RMSNorm of a row; ``out`` is bfloat16."""
    scale = inverse_rms(x, size, eps)
    for i in range(size):
        out[i] = narrow(x[i] * scale * weight[i])


@compiled
def norm_head(x, weight, size, eps):
    """RMSNorm of one head in place, float32."""
    scale = inverse_rms(x, size, eps)
    for i in range(size):
        x[i] = x[i] * scale * weight[i]


@compiled
def rotate(x, cos, sin, size):
    """Rotary position of one head in place: its first ``size`` numbers, in halves."""
    half = size // 2
    for i in range(half):
        low, high = x[i], x[i + half]
        x[i] = low * widen(cos[i]) - high * widen(sin[i])
        x[i + half] = high * widen(cos[i + half]) + low * widen(sin[i + half])


@compiled
def gated_silu(gate, up, size, out):
    """SiLU(gate) * up as bfloat16."""
    for i in range(size):
        g = gate[i]
        out[i] = narrow(g / (float32(1.0) + power_of_two(-g * LOG2_E)) * up[i])


@compiled
def add_bias(x, bias, size):
    """Add a float32 vector in place; ``bias`` is an address, 0 adds nothing."""
    if bias != 0:
        values = carray(float_pointer(bias), (size,))
        for i in range(size):
            x[i] += values[i]


@compiled
def add_part_bias(x, bias, first, size):
    """Add ``size`` numbers of a bias, from ``first`` on; 0 adds nothing."""
    if bias != 0:
        add_bias(x, bias + 4 * first, size)


@compiled
def add_to(total, x, size):
    """Total += x."""
    for i in range(size):
        total[i] += x[i]


@compiled
def add_residual(x, residual, size, out):
    """X + residual as bfloat16; ``residual`` float32."""
    for i in range(size):
        out[i] = narrow(x[i] + residual[i])


@compiled
def to_bf16(x, size, out):
    """float32 -> bfloat16."""
    for i in range(size):
        out[i] = narrow(x[i])


@compiled
def log_sum_exp(x, size):
    """The place of the first maximum, and log(sum(exp(x))); NaN and infinity show in the latter."""
    top = largest(x, size)
    place = 0
    while place < size - 1 and x[place] != top:
        place += 1
    total = float32(0.0)
    for i in range(size):
        total += power_of_two((x[i] - top) * LOG2_E)
    return place, top + np.log(total)


@compiled
def largest(x, size):
    """The maximum of float32 numbers; those that are NaN do not count."""
    lanes = np.full(_LANES, _MINUS_INFINITY, dtype=np.float32)
    whole = size // _LANES * _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            number = x[start + lane]
            lanes[lane] = number if number > lanes[lane] else lanes[lane]
    top = _MINUS_INFINITY
    for i in range(whole, size):
        top = x[i] if x[i] > top else top
    for lane in range(_LANES):
        top = lanes[lane] if lanes[lane] > top else top
    return top


@compiled
def to_floats(x, size, out):
    """bfloat16 -> float32."""
    for i in range(size):
        out[i] = widen(x[i])


@compiled(inline="always")
def floats(address: Any, size: Any) -> Any:
    """A float32 array at an address."""
    return carray(float_pointer(address), (size,))


@compiled(inline="always")
def halves(address: Any, size: Any) -> Any:
    """A bfloat16 array at an address, as uint16."""
    return carray(bf16_pointer(address), (size,))
