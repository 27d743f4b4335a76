"""Gather primitives: numpy row copies and exact conversions, single-threaded, GIL released.

Parallel gathers beside a matrix-multiply pool stall for scheduler ticks, so everything here runs
on the calling thread only. Knows no tiers and no files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram_core import compiled
from engram_core.errors import ConfigError, IdRangeError
from engram_core.store.base import OUTPUT_DTYPES, RowIds

# numpy has no bf16: rows are moved as words of the same width
_WORDS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
# torch spreads larger element-wise operations over its thread pool
_SERIAL_ELEMENTS = 32_768
_FEW_IDS = 192  # so many are compared in pairs faster than they are sorted


def check_ids(row_ids: RowIds, num_rows: int) -> None:
    """Refuse ids outside ``0 <= id < num_rows``.

    Raises:
        IdRangeError: names the first bad id.
    """
    # as unsigned numbers negative ids are huge: one pass finds both ends
    if row_ids.size and int(row_ids.view(np.uint64).max()) >= num_rows:
        bad = int(row_ids[(row_ids < 0) | (row_ids >= num_rows)].flat[0])
        raise IdRangeError(f"row id {bad} is out of range; accepted: 0 to {num_rows - 1}")


def check_output(out: torch.Tensor, num_ids: int, row_dim: int) -> None:
    """Refuse an `out` that a gather of `num_ids` rows cannot fill.

    Raises:
        ConfigError: wrong shape, dtype, place or memory order.
    """
    if tuple(out.shape) != (num_ids, row_dim) or out.dtype not in OUTPUT_DTYPES:
        raise ConfigError(
            f"out is {tuple(out.shape)} {out.dtype}; accepted: "
            f"({num_ids}, {row_dim}) in bfloat16 or float32"
        )
    if out.device.type != "cpu" or not out.is_contiguous():
        raise ConfigError(f"out lies on {out.device}; accepted: contiguous host memory")


def as_words(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The memory of a contiguous host tensor as numpy integers of the same width, not copied."""
    words: npt.NDArray[Any] = tensor.view(_WORDS[tensor.dtype]).numpy()
    return words


def take_rows(words: npt.NDArray[Any], row_ids: RowIds, out: npt.NDArray[Any]) -> None:
    """Copy ``words[row_ids]`` into `out`, same dtype and contiguous; ids were checked before."""
    # mode="clip" is the only mode that writes straight into `out` without a second buffer
    np.take(words, row_ids, axis=0, out=out, mode="clip")


def non_zero_rows(rows: torch.Tensor) -> npt.NDArray[np.bool_]:
    """Which rows of a contiguous host tensor ``[n, d]`` have a value that is not zero."""
    # a view without the sign bit: -0.0 is zero too
    magnitudes = as_words(rows) << 1
    found: npt.NDArray[np.bool_] = np.logical_or.reduce(magnitudes, axis=1, dtype=np.bool_)
    return found


def round_rows(payload: torch.Tensor, out: torch.Tensor) -> None:
    """Write bf16(payload) into `out`; a float32 `out` holds the bf16 value upcast exactly."""
    flat, target = payload.reshape(-1), out.view(-1)
    for start in range(0, flat.numel(), _SERIAL_ELEMENTS):
        part = flat[start : start + _SERIAL_ELEMENTS].to(torch.bfloat16)
        target[start : start + _SERIAL_ELEMENTS].copy_(part)


def count_unique(row_ids: RowIds) -> int:
    """Number of different ids; sorting is many times faster here than `numpy.unique`."""
    if row_ids.size == 0:
        return 0
    compiled_kernels = compiled.kernels()
    if compiled_kernels is not None and row_ids.size <= _FEW_IDS:
        try:
            return int(compiled_kernels.count_unique(row_ids))
        except TypeError:  # another shape or memory order than the usual one
            pass
    ordered = np.sort(row_ids, axis=None)
    return 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
