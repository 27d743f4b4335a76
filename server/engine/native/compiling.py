"""How functions of this package are compiled, and where the machine code is kept.

numba's cache looks at the file of the function it compiled, not at the files of what that calls.
So the machine code is kept in a folder whose name says which sources it was made from.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path

import numba
from numba import njit
from platformdirs import user_cache_path

_FLAGS = {"reassoc", "contract", "arcp", "nsz"}  # but NaN and infinity stay what they are


def _digest() -> str:
    found = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _cache_folder() -> Path:
    given = os.environ.get("ENGRAM_SERVER_CACHE_DIR")
    base = Path(given) if given else user_cache_path("engram-server")
    return base / f"kernels-{_digest()}"


if "NUMBA_CACHE_DIR" not in os.environ:  # read by every `cache=True` below this import
    numba.config.CACHE_DIR = str(_cache_folder())

# a part of a program; inlined where it pays
compiled = partial(njit, nogil=True, fastmath=_FLAGS, error_model="numpy")
# what Python calls: its machine code is kept on disk
entry = partial(njit, nogil=True, fastmath=_FLAGS, error_model="numpy", cache=True)
