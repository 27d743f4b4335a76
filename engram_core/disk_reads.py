"""Many small reads of one file or several in one compiled call, without the GIL.

The kernel first tells the system about every page that will be needed, so that the disk works on
all of them at once, and then reads them one by one: as fast as io_uring, with plain POSIX calls. A
read beyond the file's end is a short read and never a signal. Knows offsets; knows no rows.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


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

    def read_each(fds: Any, sizes: Any, offsets: Any, out: Any) -> Any:
        parts, count = offsets.shape
        if parts * count > 1:
            for part in range(parts):
                for index in range(count):
                    advise(np.int32(fds[part]), offsets[part, index], sizes[part], will_need)
        address = np.int64(out.ctypes.data)
        for index in range(count):
            start = address + index * out.shape[1]
            for part in range(parts):
                fd, size = np.int32(fds[part]), sizes[part]
                if pread(fd, np.uint64(start), np.uint64(size), offsets[part, index]) != size:
                    return index * parts + part
                start += size
        return -1

    signature = "int64(int64[::1], int64[::1], int64[:, ::1], uint8[:, ::1])"
    return numba.njit(signature, nogil=True, error_model="numpy")(read_each)


def read_each(fds: Int64s, sizes: Int64s, offsets: Int64s, out: Bytes, kernel: Any = None) -> int:
    """Read records whose parts lie in several places, one part behind the other.

    Args:
        fds: the open file of every part, int64 ``[parts]``; one file may have several.
        sizes: bytes of every part, int64 ``[parts]``.
        offsets: where the parts of every record begin, int64 ``[parts, n]``.
        out: uint8 ``[n, sum(sizes)]``.
        kernel: the compiled form.

    Returns:
        -1, or the first read that failed or met a file's end, as record x parts + part.
    """
    if kernel is not None:
        return int(kernel(fds, sizes, offsets, out))
    for fd, size, starts in zip(fds.tolist(), sizes.tolist(), offsets.tolist(), strict=True):
        for offset in starts:
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)
    stops = np.cumsum(sizes)
    for index, record in enumerate(out):
        for part, target in enumerate(np.split(record, stops[:-1])):
            if not _read(int(fds[part]), int(offsets[part, index]), target):
                return index * len(fds) + part
    return -1


def _read(fd: int, offset: int, out: Bytes) -> bool:
    """Whether all of `out` could be read."""
    try:
        data = os.pread(fd, out.size, offset)
    except OSError:
        return False
    if len(data) != out.size:
        return False
    out[:] = np.frombuffer(data, np.uint8)
    return True
