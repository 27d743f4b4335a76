"""The kernels of `fused_gate`: gates, gated values and the short convolution, for `compiled`.

Plain functions of plain loops that a compiler vectorises; compiled by `compiled.load`. bfloat16
travels as uint16 words, and everything between is float32. Shapes: T tokens of all sequences, G
streams, D hidden size, K taps, H = (K-1)*dilation earlier inputs, S sequences.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LOG2_E = np.float32(1.4426950408889634)
# 2^f for |f| <= 1/2, relative error below 2e-7 (Taylor of exp(f ln 2), seven terms)
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = (
    np.float32(c)
    for c in (
        1.0,
        0.6931471805599453,
        0.2402265069591007,
        0.05550410866482158,
        0.009618129107628477,
        0.0013333558146428443,
        0.00015403530393381608,
    )
)


def open_gates(
    hidden: Any, kv: Any, norms: Any, eps: float, is_v41: bool, span: Any, gates: Any
) -> None:
    """The gates of both forms (engram-spec section 5) for the tokens `span` ``[2]``.

    `hidden` ``[T, G*D]``, `kv` ``[T, (G+1)*D]``, `norms` the product of both norms' weights
    ``[G*D]``, `gates` ``[T, G]``.
    """
    streams = gates.shape[1]
    dim = hidden.shape[1] // streams
    one = np.float32(1.0)
    state = np.empty(dim, np.uint32)
    states = state.view(np.float32)
    key = np.empty(dim, np.uint32)
    keys = key.view(np.float32)
    for token in range(span[0], span[1]):
        for stream in range(streams):
            start = stream * dim
            for i in range(dim):
                state[i] = np.uint32(hidden[token, start + i]) << np.uint32(16)
                key[i] = np.uint32(kv[token, start + i]) << np.uint32(16)
            product, states_sum, keys_sum = np.float32(0), np.float32(0), np.float32(0)
            for i in range(dim):
                product += states[i] * norms[start + i] * keys[i]
                states_sum += states[i] * states[i]
                keys_sum += keys[i] * keys[i]
            dot = product / np.float32(math.sqrt(np.float32(dim)))
            dot *= one / np.float32(math.sqrt(states_sum / np.float32(dim) + eps))
            dot *= one / np.float32(math.sqrt(keys_sum / np.float32(dim) + eps))
            size = np.float32(math.sqrt(max(abs(dot), np.float32(1e-6))))
            signed = np.float32(math.copysign(size, dot))
            if dot == np.float32(0) and not is_v41:
                signed = np.float32(0)
            gates[token, stream] = one / (one + np.float32(math.exp(-signed)))


def add_values(hidden: Any, kv: Any, gates: Any, scales: Any, span: Any, out: Any) -> None:
    """`hidden` plus gate x value x scale into `out` ``[T, G*D]``; `scales` ``[T]``."""
    streams = gates.shape[1]
    dim = hidden.shape[1] // streams
    value = np.empty(dim, np.uint32)
    values = value.view(np.float32)
    state = np.empty(dim, np.uint32)
    states = state.view(np.float32)
    for token in range(span[0], span[1]):
        for i in range(dim):
            value[i] = np.uint32(kv[token, streams * dim + i]) << np.uint32(16)
        for stream in range(streams):
            start = stream * dim
            gate = gates[token, stream]
            for i in range(dim):
                state[i] = np.uint32(hidden[token, start + i]) << np.uint32(16)
            for i in range(dim):
                states[i] += gate * values[i] * scales[token]
            for i in range(dim):
                word = state[i]
                rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> (
                    np.uint32(16)
                )
                # rounding up would turn some NaNs into infinity or zero
                is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
                out[token, start + i] = np.uint16(0x7FC0) if is_nan else np.uint16(rounded)


def conv_inputs(kv: Any, gates: Any, norms: Any, eps: float, span: Any, inputs: Any) -> None:
    """What the convolution reads, the gated values' RMSNorm: `inputs` ``[T, G*D]``.

    `norms` the norm's weights ``[G*D]``. All values of a stream share one gate, so the norm of
    their products is a factor.
    """
    streams = gates.shape[1]
    dim = inputs.shape[1] // streams
    value = np.empty(dim, np.uint32)
    values = value.view(np.float32)
    normed = np.empty(dim, np.float32)
    words = normed.view(np.uint32)
    for token in range(span[0], span[1]):
        total = np.float32(0)
        for i in range(dim):
            value[i] = np.uint32(kv[token, streams * dim + i]) << np.uint32(16)
        for i in range(dim):
            total += values[i] * values[i]
        mean = total / np.float32(dim)
        for stream in range(streams):
            start = stream * dim
            gate = gates[token, stream]
            factor = gate / np.float32(math.sqrt(gate * gate * mean + eps))
            for i in range(dim):
                normed[i] = values[i] * factor * norms[start + i]
            for i in range(dim):
                word = words[i]
                rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> (
                    np.uint32(16)
                )
                is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
                inputs[token, start + i] = np.uint16(0x7FC0) if is_nan else np.uint16(rounded)


def add_convolved(
    hidden: Any,
    kv: Any,
    gates: Any,
    inputs: Any,
    history: Any,
    starts: Any,
    weights: Any,
    dilation: int,
    scales: Any,
    span: Any,
    out: Any,
) -> None:
    """`hidden` plus (gated value + SiLU of the convolution) x scale into `out` ``[T, G*D]``.

    `inputs` ``[T, G*D]`` of all tokens, `history` ``[S*H, G*D]`` each sequence's earlier ones,
    `starts` ``[S+1]`` its first token, `weights` ``[K, G*D]``.
    """
    streams = gates.shape[1]
    dim = hidden.shape[1] // streams
    taps = weights.shape[0]
    reach = (taps - 1) * dilation
    one, half = np.float32(1.0), np.float32(0.5)
    word_of = np.empty(dim, np.uint32)
    read = word_of.view(np.float32)
    value = np.empty(dim, np.uint32)
    values = value.view(np.float32)
    mixed = np.empty(dim, np.float32)
    power = np.empty(dim, np.int32)
    powers = power.view(np.float32)
    state = np.empty(dim, np.uint32)
    states = state.view(np.float32)
    for sequence in range(starts.shape[0] - 1):
        first = starts[sequence]
        for token in range(max(first, span[0]), min(starts[sequence + 1], span[1])):
            for i in range(dim):
                value[i] = np.uint32(kv[token, streams * dim + i]) << np.uint32(16)
            for stream in range(streams):
                start = stream * dim
                for i in range(dim):
                    mixed[i] = np.float32(0)
                for tap in range(taps):
                    at = token - (taps - 1 - tap) * dilation
                    if at >= first:
                        for i in range(dim):
                            word_of[i] = np.uint32(inputs[at, start + i]) << np.uint32(16)
                    else:
                        row = sequence * reach + reach + at - first
                        for i in range(dim):
                            word_of[i] = np.uint32(history[row, start + i]) << np.uint32(16)
                    for i in range(dim):
                        mixed[i] += weights[tap, start + i] * read[i]
                gate = gates[token, stream]
                # SiLU: x / (1 + 2^(-x log2 e)), the power by its whole and broken part
                for i in range(dim):
                    bounded = min(max(-mixed[i] * LOG2_E, np.float32(-126)), np.float32(126))
                    power[i] = np.int32(math.floor(bounded + half))
                for i in range(dim):
                    bounded = min(max(-mixed[i] * LOG2_E, np.float32(-126)), np.float32(126))
                    f = bounded - np.float32(power[i])
                    series = _C0 + f * (
                        _C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6))))
                    )
                    power[i] = (power[i] + np.int32(127)) << np.int32(23)
                    read[i] = series
                for i in range(dim):
                    read[i] = mixed[i] / (one + read[i] * powers[i])
                for i in range(dim):
                    state[i] = np.uint32(hidden[token, start + i]) << np.uint32(16)
                for i in range(dim):
                    states[i] += (gate * values[i] + read[i]) * scales[token]
                for i in range(dim):
                    word = state[i]
                    rounded = (
                        word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))
                    ) >> np.uint32(16)
                    is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
                    out[token, start + i] = np.uint16(0x7FC0) if is_nan else np.uint16(rounded)
