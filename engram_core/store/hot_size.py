"""How many rows a hot cache keeps in a budget, and how much memory it takes.

Knows sizes alone, for the cache itself and for who plans one; makes nothing.
"""

from __future__ import annotations

from engram_core.store.hot_policy import HotPolicy

_WORD_BYTES = 2  # rows are kept in bf16, whatever the table stores


def cache_bytes(num_rows: int, row_dim: int, slots: int) -> int:
    """Bytes of a cache of `slots` rows of `row_dim` values, its map of `num_rows` rows included."""
    return HotPolicy.nbytes(num_rows, slots) + slots * row_dim * _WORD_BYTES


def slots_in(budget_bytes: int, num_rows: int, row_dim: int) -> int:
    """Rows that such a cache keeps in `budget_bytes`; 0 where its map alone takes more."""
    fixed = cache_bytes(num_rows, row_dim, 0)
    slot = cache_bytes(num_rows, row_dim, 1) - fixed
    return max(0, min(num_rows, (budget_bytes - fixed) // slot))
