"""Compiled kernels: what a served step does to few numbers, in one call each.

A step meets cold caches, where every numpy or torch call costs many times what it costs in a tight
loop. So hashing, the hit rule, row copies and the gate exist here as single compiled calls too. The
one importer of numba, and only once `load` is called: where numba is missing, or was never loaded,
everything runs in numpy and torch with equal results.

All functions run on the calling thread (parallel gathers beside a matrix-multiply pool stall), let
go of the GIL, and are compiled by `load`, never within a request: arguments of other types than
those below raise TypeError. Rows and hidden states in bfloat16 travel as uint16 words.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram_core.disk_reads import compile_reads
from engram_core.hot_kernels import copy_rows, find_places, reserve_slots, store_rows
from engram_core.record_kernels import (
    take_copied,
    take_fp8,
    take_int4,
    take_int8,
    touch_records,
)

_log = logging.getLogger(__name__)
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled functions: those of the same names here and in the modules of kernels."""

    window_rows: Callable[..., None]
    mark_hits: Callable[..., int]
    take_sparse: Callable[..., int]
    count_unique: Callable[..., int]
    add_gated: Callable[..., None]
    touch_records: Callable[..., int]
    take_copied: Callable[..., None]
    take_int8: Callable[..., None]
    take_fp8: Callable[..., None]
    take_int4: Callable[..., None]
    find_places: Callable[..., tuple[int, int, int]]
    reserve_slots: Callable[..., tuple[int, int]]
    copy_rows: Callable[..., None]
    copy_rows_upcast: Callable[..., None]
    store_rows: Callable[..., None]


_kernels: Kernels | None = None
_tried = False
_disk_reads: Any | None = None


def kernels() -> Kernels | None:
    """The compiled functions, once `load` has made them."""
    return _kernels


def load() -> bool:
    """Compile everything, or read it from numba's cache; returns whether that worked."""
    global _kernels, _tried  # noqa: PLW0603 - one set for the process, like an import
    with _lock:
        if not _tried:
            _tried = True
            try:
                _kernels = _compile_all()
            except ImportError:
                _log.info("numba is not installed; the memory's kernels run in numpy")
            except Exception:  # noqa: BLE001 - whatever a compiler has against this machine
                _log.warning("the memory's kernels cannot be compiled", exc_info=True)
    return _kernels is not None


def load_disk_reads() -> Any | None:
    """The kernel of `disk_reads`, which only a table on disk needs; None without numba."""
    global _disk_reads  # noqa: PLW0603 - one for the process, like an import
    with _lock:
        if _disk_reads is None:
            try:
                import numba  # noqa: PLC0415 - slow to import, and missing where only the core runs
            except ImportError:
                return None
            _disk_reads = compile_reads(numba)
        return _disk_reads


def _compile_all() -> Kernels:
    import numba  # noqa: PLC0415 - slow to import, and missing where only the core runs

    def compiled(
        function: Callable[..., Any], result: str, arguments: list[str], **options: Any
    ) -> Any:
        signature = f"{result}({', '.join(arguments)})"
        options |= {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except RuntimeError:  # nowhere to write a cache: compiled anew by every process
            return numba.njit(signature, **options)(function)

    ids, ids_2d, slots, flags = "int64[::1]", "int64[:, ::1]", "int32[::1]", "boolean[::1]"
    words, floats, floats_2d = "uint16[:, ::1]", "float32[::1]", "float32[:, ::1]"
    records = [ids, "uint8[::1]", "int64", "int64", "int64"]
    tables = "Tuple((int32[::1], uint8[::1], int32[::1], int64[::1], int32[::1]))"
    wide_words = "uint32[:, ::1]"
    return Kernels(
        window_rows=compiled(window_rows, "void", [ids_2d, ids_2d, ids, ids, ids_2d]),
        mark_hits=compiled(mark_hits, "int64", [ids_2d, slots, "int64", flags, flags]),
        take_sparse=compiled(take_sparse, "int64", [ids, slots, words, words]),
        count_unique=compiled(count_unique, "int64", [ids]),
        add_gated=compiled(
            add_gated,
            "void",
            [words, words, floats, "float32", "boolean", floats, words, floats_2d],
            # sums may be reordered, or they could not be vectorised
            fastmath={"reassoc", "contract", "nsz"},
        ),
        touch_records=compiled(touch_records, "int64", records),
        take_copied=compiled(take_copied, "void", [*records, words]),
        take_int8=compiled(take_int8, "void", [*records, words]),
        take_fp8=compiled(take_fp8, "void", [*records, floats, words]),
        take_int4=compiled(take_int4, "void", [*records, words]),
        find_places=compiled(
            find_places,
            "UniTuple(int64, 3)",
            [ids, "boolean", tables, "int64", "int64", slots, ids],
        ),
        reserve_slots=compiled(
            reserve_slots,
            "UniTuple(int64, 2)",
            [ids, tables, "uint64[::1]", "int64", "int64", "int64", slots],
        ),
        copy_rows=compiled(copy_rows, "void", [words, slots, "int64", words]),
        copy_rows_upcast=compiled(copy_rows, "void", [words, slots, "int64", wide_words]),
        store_rows=compiled(store_rows, "void", [words, slots, words]),
    )


def window_rows(windows: Any, multipliers: Any, primes: Any, offsets: Any, out: Any) -> None:
    """`NgramHasher.window_rows`: int64 ``[tokens, N]`` -> `out` ``[tokens, columns]``.

    `multipliers` ``[orders, N]`` (see `HashLayout.window_multipliers`).
    """
    tokens, reach = windows.shape
    orders = multipliers.shape[0]
    heads = primes.shape[0] // orders
    for token in range(tokens):
        for order in range(orders):
            mixed = np.int64(0)
            for slot in range(reach):
                mixed ^= windows[token, slot] * multipliers[order, slot]
            for column in range(order * heads, (order + 1) * heads):
                out[token, column] = mixed % primes[column] + offsets[column]


def mark_hits(row_ids: Any, slot_of_row: Any, first_written: int, needed: Any, hits: Any) -> int:
    """`SparseTier.hits`: fills `hits` ``[tokens]``; returns their number, or -1 for a bad id."""
    tokens, columns = row_ids.shape
    num_rows = slot_of_row.shape[0]
    found = 0
    for token in range(tokens):
        hit = True
        for column in range(columns):
            row = row_ids[token, column]
            if row < 0 or row >= num_rows:
                return -1
            if needed[column] and slot_of_row[row] < first_written:
                hit = False
        hits[token] = hit
        found += hit
    return found


def take_sparse(row_ids: Any, slot_of_row: Any, words: Any, out: Any) -> int:
    """`SparseTier.gather` in bfloat16 ``[n, row_dim]``; returns -1 for a bad id, before writing."""
    num_rows = slot_of_row.shape[0]
    for index in range(row_ids.shape[0]):
        if row_ids[index] < 0 or row_ids[index] >= num_rows:
            return -1
    for index in range(row_ids.shape[0]):
        slot = slot_of_row[row_ids[index]]
        for column in range(words.shape[1]):
            out[index, column] = words[slot, column]
    return 0


def count_unique(row_ids: Any) -> int:
    """Number of different ids among few: every one is compared with all before it."""
    found = 0
    for index in range(row_ids.shape[0]):
        is_new = 1
        for earlier in range(index):
            if row_ids[earlier] == row_ids[index]:
                is_new = 0
        found += is_new
    return found


def add_gated(
    hidden: Any,
    kv: Any,
    norms: Any,
    eps: float,
    is_v41: bool,
    scales: Any,
    out: Any,
    gates: Any,
) -> None:
    """`EngramModule`'s gate without convolution, bfloat16 words in and out, float32 between.

    `hidden` and `out` ``[tokens, G*D]``, `kv` ``[tokens, (G+1)*D]``, `norms` the product of both
    norms' weights ``[G*D]``, `scales` ``[tokens]``, `gates` ``[tokens, G]``.
    """
    tokens, streams = gates.shape
    dim = hidden.shape[1] // streams
    one = np.float32(1.0)
    state = np.empty(dim, np.uint32)
    states = state.view(np.float32)
    key = np.empty(dim, np.uint32)
    keys = key.view(np.float32)
    for token in range(tokens):
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
            gate = one / (one + np.float32(math.exp(-signed)))
            gates[token, stream] = gate
            for i in range(dim):
                key[i] = np.uint32(kv[token, streams * dim + i]) << np.uint32(16)
            for i in range(dim):
                states[i] += gate * keys[i] * scales[token]
            for i in range(dim):
                word = state[i]
                rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> (
                    np.uint32(16)
                )
                # rounding up would turn some NaNs into infinity or zero
                is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
                out[token, start + i] = np.uint16(0x7FC0) if is_nan else np.uint16(rounded)
