"""Many small reads of one file in one compiled call, without the GIL.

The kernel first tells the system about every page that will be needed, so that the disk works on
all of them at once, and then reads them one by one: as fast as io_uring, with plain POSIX calls. A
read beyond the file's end is a short read and never a signal. Knows offsets; knows no rows.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt


def compile_reads(numba: Any) -> Any:
    """The compiled form of `read_each`: returns -1, or the index of the first read that failed."""
    types = numba.types
    # found in the process itself, where the C library always is
    advise = types.ExternalFunction(
        "posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32)
    )
    pread = types.ExternalFunction(
        "pread", types.int64(types.int32, types.uintp, types.uint64, types.int64)
    )
    will_need = np.int32(os.POSIX_FADV_WILLNEED)

    def read_each(fd: Any, offsets: Any, out: Any) -> Any:
        count, size = out.shape
        if count > 1:
            for index in range(count):
                advise(np.int32(fd), offsets[index], size, will_need)
        address = out.ctypes.data
        for index in range(count):
            place = np.uint64(address + index * size)
            if pread(np.int32(fd), place, np.uint64(size), offsets[index]) != size:
                return index
        return -1

    signature = "int64(int64, int64[::1], uint8[:, ::1])"
    return numba.njit(signature, nogil=True, error_model="numpy")(read_each)


def read_each(
    fd: int, offsets: npt.NDArray[np.int64], out: npt.NDArray[np.uint8], kernel: Any = None
) -> int:
    """Read ``out[i]`` from `offsets` ``[n]`` of the file `fd`, `out` uint8 ``[n, size]``.

    Returns:
        -1, or the index of the first read that failed or met the file's end.
    """
    if kernel is not None:
        return int(kernel(fd, offsets, out))
    size = out.shape[1]
    for offset in offsets.tolist():
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)
    for index, offset in enumerate(offsets.tolist()):
        try:
            data = os.pread(fd, size, offset)
        except OSError:
            return index
        if len(data) != size:
            return index
        out[index] = np.frombuffer(data, np.uint8)
    return -1
