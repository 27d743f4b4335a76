"""Engram memories for transformers: exact hashing, tables, prefetch and the gated module.

The names below are loaded when they are first used, so that the torch-free parts stay torch-free.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram_core.compression import TokenCompressor
    from engram_core.config import EngramConfig
    from engram_core.hashing import NgramHasher
    from engram_core.layout import HashLayout
    from engram_core.module import EngramModule
    from engram_core.splice import attach

_HOMES = {
    "EngramConfig": "config",
    "EngramModule": "module",
    "HashLayout": "layout",
    "NgramHasher": "hashing",
    "TokenCompressor": "compression",
    "attach": "splice",
}

__all__ = ["EngramConfig", "EngramModule", "HashLayout", "NgramHasher", "TokenCompressor", "attach"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
