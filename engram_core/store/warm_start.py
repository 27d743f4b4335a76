"""Warm start: what a cache of hot rows, on the host or on a device, keeps over a restart.

Knows caches by what they offer and lists of hot rows by their file; decides no place and no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engram_core.store.base import RowIds, Tier
from engram_core.store.chain import tier_chain
from engram_core.store.device_cache import DeviceCache
from engram_core.store.hot_cache import HotCache
from engram_core.store.hot_list import HotList, read_hot_list, write_hot_list
from engram_core.store.kernels import check_ids

CHUNK_ROWS = 4096

# Asked after every piece with the rows done and wanted; False ends the warming.
GoOn = Callable[[int, int], bool]


class RowCache(Protocol):
    """A cache of hot rows."""

    num_rows: int
    row_dim: int
    capacity_rows: int

    @property
    def resident_rows(self) -> int:
        """Rows that lie in a slot now."""

    def hottest(self) -> tuple[RowIds, npt.NDArray[np.uint8]]:
        """Rows in slots and their counters, hottest first."""

    def raise_counts(self, row_ids: RowIds, counts: npt.NDArray[np.uint8] | np.uint8) -> None:
        """Let rows count as at least so hot."""

    def fetch(self, row_ids: RowIds) -> None:
        """Bring rows into slots that nobody has asked for yet."""


def caches_of(tiers: Mapping[int, Tier]) -> dict[tuple[int, str], RowCache]:
    """Every cache of hot rows by its layer and tier name, the outermost first."""
    return {
        (layer, each.name): each
        for layer, tier in tiers.items()
        for each in tier_chain(tier)
        if isinstance(each, HotCache | DeviceCache)
    }


def warm(cache: RowCache, row_ids: RowIds, go_on: GoOn = lambda _done, _wanted: True) -> int:
    """Fetch rows that will be wanted, hottest first; returns how many lie in slots then.

    Each counts as met at least once, in no statistics. Ids beyond the capacity are left out, since
    they would take the slots of hotter ones.

    Raises:
        IdRangeError: an id is negative or not below the table's rows; nothing is fetched then.
        TierError: the rows could not be delivered; those fetched before stay.
    """
    check_ids(row_ids, cache.num_rows)
    wanted = row_ids[: cache.capacity_rows]
    for start in range(0, wanted.size, CHUNK_ROWS):
        ids: RowIds = wanted[start : start + CHUNK_ROWS].copy()
        cache.raise_counts(ids, np.uint8(1))
        cache.fetch(ids)
        if not go_on(start + ids.size, wanted.size):
            break
    return cache.resident_rows


def save_hot_list(cache: RowCache, path: Path) -> None:
    """Write which rows are hot, and how hot, for a later start; replaces the file at once."""
    row_ids, counts = cache.hottest()
    write_hot_list(path, HotList(cache.num_rows, cache.row_dim, row_ids, counts))


def load_hot_list(cache: RowCache, path: Path, go_on: GoOn = lambda _done, _wanted: True) -> int:
    """Warm a cache with a saved list (see `warm`); returns how many rows lie in slots then.

    All of its counters are taken over, so rows that are left out come in when they are met.

    Raises:
        ArtefactError: the file is missing or no such list.
        MismatchError: it was saved for a table of another shape.
        TierError: the rows could not be delivered.
    """
    saved = read_hot_list(path, cache.num_rows, cache.row_dim)
    cache.raise_counts(saved.row_ids, saved.counts)
    return warm(cache, saved.row_ids, go_on)
