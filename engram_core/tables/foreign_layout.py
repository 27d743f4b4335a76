"""Builds the hash constants of a foreign memory and holds them against the tables that were found.

Knows no formats and no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from engram_core.config import EngramConfig
from engram_core.errors import MismatchError
from engram_core.layout import HashLayout


def build_layout(
    config: EngramConfig, compressed_size: int, found_rows: Sequence[int], where: str
) -> HashLayout:
    """The constants of a memory whose tables have so many rows.

    Raises:
        MismatchError: the configuration asks for far larger tables than there are; looking for
            their primes could take for ever.
    """
    least = config.num_heads * sum(config.rows_per_head)
    for rows in found_rows:
        if rows < least:
            raise MismatchError("table rows", expected=f">= {least}", found=rows, where=where)
    return HashLayout.build(config, compressed_size)


def check_rows(layout: HashLayout, layer: int, found: int, where: str) -> None:
    """Refuse a table that has not as many rows as the layer's primes add up to.

    Raises:
        MismatchError: names both numbers.
    """
    what = f"rows of layer {layer} (the sum of its primes)"
    if found != layout.rows[layer]:
        raise MismatchError(what, expected=layout.rows[layer], found=found, where=where)


def check_offsets(layout: HashLayout, layer: int, found: Sequence[int], where: str) -> None:
    """Refuse a table whose columns begin elsewhere. Raises MismatchError naming both lists."""
    expected = list(layout.offsets[layer])
    if list(found) != expected:
        what = f"offsets of layer {layer}"
        raise MismatchError(what, expected=expected, found=list(found), where=where)
