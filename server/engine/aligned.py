"""Host memory that begins on a cache line, as compiled kernels load it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_CACHE_LINE = 64


def aligned_bytes(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros that begin on a cache line; they take memory only once they are written."""
    # numpy asks the system for zero pages, torch would write the zeros itself
    spare = np.zeros(num_bytes + _CACHE_LINE, dtype=np.uint8)
    start = -spare.ctypes.data % _CACHE_LINE
    return spare[start : start + num_bytes]
