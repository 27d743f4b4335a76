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
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engram_core.disk_reads import compile_reads
from engram_core.gate_kernels import add_convolved, add_values, conv_inputs, open_gates
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
    open_gates: Callable[..., None]
    add_values: Callable[..., None]
    conv_inputs: Callable[..., None]
    add_convolved: Callable[..., None]
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

    # sums may be reordered, or they could not be vectorised
    summing = partial(compiled, fastmath={"reassoc", "contract", "nsz"})
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
        open_gates=summing(
            open_gates, "void", [words, words, floats, "float32", "boolean", ids, floats_2d]
        ),
        add_values=summing(add_values, "void", [words, words, floats_2d, floats, ids, words]),
        conv_inputs=summing(conv_inputs, "void", [words, floats_2d, floats, "float32", ids, words]),
        add_convolved=summing(
            add_convolved,
            "void",
            [words, words, floats_2d, words, words, ids, floats_2d, "int64", floats, ids, words],
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
