"""How much of a file the system keeps in memory, and making it forget; Linux only.

Knows files and pages; knows nothing of tables or tiers. A page that a process has mapped, or that
was not yet written back, cannot be dropped: `resident_share` afterwards says what stayed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np

_PIECE_BYTES = 2**30  # mapped at a time while it is looked at


def drop(paths: Iterable[Path]) -> None:
    """Write each file's pages back and give them up. Raises OSError where that is refused."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)  # a page that is not yet written back would stay
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def resident_share(path: Path) -> float:
    """The share of the file's pages that lie in memory, 0 to 1; 0 for an empty file.

    The file is mapped for the moment of the question, but none of its pages is touched. Of a file
    that this user neither owns nor may write the system tells nothing: it then answers 1.

    Raises:
        OSError: the file cannot be read, or the system does not tell.
    """
    num_bytes = path.stat().st_size
    num_pages = -(-num_bytes // mmap.PAGESIZE)
    with path.open("rb") as file:
        resident = sum(
            _resident_pages(file.fileno(), start, min(_PIECE_BYTES, num_bytes - start))
            for start in range(0, num_bytes, _PIECE_BYTES)
        )
    return resident / num_pages if num_pages else 0.0


def _resident_pages(fd: int, start: int, num_bytes: int) -> int:
    """Pages in memory of `num_bytes` from byte `start`, a multiple of the page size."""
    flags = np.zeros(-(-num_bytes // mmap.PAGESIZE), np.uint8)
    mapping = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=start)
    with closing(mapping):
        address = np.frombuffer(mapping, np.uint8).ctypes.data  # the array is gone at once
        _mincore(address, num_bytes, flags.ctypes.data)
    return int(np.count_nonzero(flags & 1))  # the other bits mean nothing yet


def _mincore(address: int, num_bytes: int, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), ctypes.c_void_p(flags))
    if libc.mincore(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
