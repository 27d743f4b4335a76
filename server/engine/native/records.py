"""The records that compiled code reads: weights, layers, and a step's work.

Everything is an int64 or a float64; addresses are int64 too, 0 where there is nothing. Whoever
fills a record keeps the memory behind its addresses alive.
"""

from __future__ import annotations

import numpy as np


def _record(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names])


WEIGHT = _record(
    "form",  # a number of matmul: BF16, INT8 or INT4
    "num_inputs",
    "num_blocks",
    "data",  # address
    "block_bytes",
    "bias",  # float32, or 0
)

# a decoder layer: addresses of float32 vectors, numbers of its weights, and its part of the cache
LAYER = np.dtype(
    [
        ("input_norm", np.int64),
        ("post_norm", np.int64),
        ("query_norm", np.int64),  # 0: none
        ("key_norm", np.int64),
        ("input_eps", np.float64),
        ("post_eps", np.float64),
        ("head_eps", np.float64),
        ("scaling", np.float64),  # of the attention's scores
        ("window", np.int64),  # keys that a token sees, 0: all
        ("keys", np.int64),  # address of the layer's keys in the cache
        ("values", np.int64),
        ("qkv", WEIGHT),
        ("output", WEIGHT),
        ("gate_up", WEIGHT),  # blocks of gate and up alternate
        ("down", WEIGHT),
    ]
)

# sizes that all layers share
SHAPE = _record(
    "hidden",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate",
    "rotary_dim",
    "block_bytes",  # of one layer's keys in one KV block, all heads
    "block_tiles",  # 16 keys each
    "tile_tokens",  # tokens of a prompt that attend together
)

# one stretch of a sequence in a step
SPAN = _record("row", "num_tokens", "position", "blocks")  # blocks: address of its block table

# what a team is to do; see `program`
JOB = np.dtype(
    [
        (name, np.int64)
        for name in (
            "kind",
            "num_threads",
            "first_layer",
            "num_layers",
            "layers",
            "shape",
            "num_rows",
            "hidden",  # address of bfloat16 [rows, hidden], changed in place
            "cos",  # addresses of bfloat16 [rows, rotary_dim]
            "sin",
            "spans",
            "units",  # int64 [units, 3]: span, its first token, tokens
            "num_units",
            "slots",  # int64 [rows]: where each row's key goes
            "weight",  # a single product: address of a WEIGHT
            "input",
            "result",
            "result_is_float",
            "num_columns",
            "row_bytes",  # statistics: distance of one row from the next
            "norms",  # statistics: address of float32 [rows]
            # scratch shared by the team
            "normed",
            "qkv",
            "query",
            "context",
            "residual",
            "activated",
            # scratch of each thread, and its size
            "private",
            "private_bytes",
        )
    ]
)
