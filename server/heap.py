"""Gives memory that loading has freed back to the system.

glibc keeps freed pieces between pieces in use; a model that was read, checked and packed leaves
hundreds of megabytes of them.
"""

from __future__ import annotations

import ctypes
import gc


def give_back_freed_memory() -> None:
    """Return what nobody uses; does nothing where the C library has no such call."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
