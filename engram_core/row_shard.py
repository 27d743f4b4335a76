"""Cuts the heads that one row server serves out of an artefact.

Knows artefacts and host tiers; knows no network. Rows of other heads are not kept.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from engram_core.assembly import make_tier
from engram_core.errors import ConfigError
from engram_core.store.local_rows import LocalRowSource
from engram_core.store.packed import PackedTier
from engram_core.store.row_ranges import RowRanges, head_bounds
from engram_core.store.row_source import RowSourceDescription, ServedTable, row_table
from engram_core.store.table_memory import TableMemory
from engram_core.tables import Artefact, DenseRows, SparseRows, TableRows
from engram_core.tables.float8_reader import Float8Reader
from engram_core.tables.manifest import FileRecord
from engram_core.tables.packed_file import PackedFile


def shard_of(artefact: Artefact, heads: Collection[int] | None = None) -> LocalRowSource:
    """The rows of `heads` (None: of all) in every order and layer of an opened artefact.

    Raises:
        ConfigError: there is no such head, or the tables are read in place.
    """
    layout, tables, tiers = artefact.layout, {}, {}
    for layer in artefact.config.layer_ids:
        ranges = RowRanges(head_bounds(layout, layer, heads))
        shape = (layout.rows[layer], artefact.config.head_dim)
        tables[row_table(layer)] = ServedTable(*shape, ranges.bounds)
        rows = artefact.rows(layer)
        if isinstance(rows, Float8Reader):
            raise ConfigError(f"{artefact.name} is read in place; accepted: a native artefact")
        if isinstance(rows, PackedFile):
            rows = _read_ranges(rows, artefact.table_record(layer), ranges)
        else:
            rows = _cut(rows, ranges)
        tiers[row_table(layer)] = make_tier(rows)
    return LocalRowSource(RowSourceDescription(artefact.content, tables), tiers)


def _read_ranges(file: PackedFile, record: FileRecord, ranges: RowRanges) -> DenseRows:
    """The ranges of a packed table as bf16 rows, its bytes verified."""
    tier = PackedTier(TableMemory(file, record).data, file.format, file.num_rows)
    values = torch.empty(ranges.num_rows, file.row_dim, dtype=torch.bfloat16)
    start = 0
    for first, stop in ranges.bounds:
        tier.gather(np.arange(first, stop), values[start : start + stop - first])
        start += stop - first
    return DenseRows(values)


def _cut(rows: TableRows, ranges: RowRanges) -> TableRows:
    """The rows of the ranges, packed."""
    if ranges.num_rows == rows.num_rows:
        return rows
    if isinstance(rows, DenseRows):
        return DenseRows(torch.cat([rows.values[first:stop] for first, stop in ranges.bounds]))
    kept = ranges.holds(rows.row_ids)
    values = rows.values[torch.from_numpy(kept)]
    return SparseRows(ranges.places(rows.row_ids[kept]), values, ranges.num_rows)
