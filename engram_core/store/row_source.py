"""RowSource: rows by table name and id, from wherever somebody else keeps them.

Says what a source answers and when its answers can be trusted. Knows no tiers and no protocol:
`flight_source` asks over the network, `local_rows` answers out of this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engram_core.errors import MismatchError
from engram_core.store.base import RowIds

# Rows in bf16, each value as a word of its 16 bits: [n, row_dim].
RowWords = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class ServedTable:
    """A table of which a source has rows.

    Attributes:
        num_rows: rows of the whole table. row_dim: values in a row.
        ranges: the rows that this source has, as (first, one behind the last), ascending.
    """

    num_rows: int
    row_dim: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RowSourceDescription:
    """What a source has.

    Attributes:
        memory: content id of the memory (`tables.Artefact.content`).
        tables: by table name (see `row_table`).
    """

    memory: str
    tables: Mapping[str, ServedTable]


class RowSource(Protocol):
    """Rows of the tables of one memory. All methods may be called from several threads."""

    @property
    def name(self) -> str:
        """Who answers, for error sentences: ``"127.0.0.1:9100"``."""

    def describe(self, timeout_s: float) -> RowSourceDescription:
        """What the source has.

        Raises:
            TierTimeoutError: no answer within `timeout_s`.
            TierUnreachableError: nobody answers.
            TierRefusedError: an answer that says no, or that cannot be understood.
        """

    def read_rows(self, table: str, row_ids: RowIds, timeout_s: float) -> RowWords:
        """The rows `row_ids` ``[n]`` of `table`, in that order, repeats allowed: ``[n, row_dim]``.

        Reading changes nothing: it may be repeated after any failure. The result may be read-only.

        Raises:
            TierTimeoutError: not all rows came within `timeout_s`.
            TierUnreachableError: nobody answers, or the connection broke.
            TierRefusedError: the source serves another memory (both ids are named), does not have
                one of the rows, does not accept the token, or answered something else.
        """

    def close(self) -> None:
        """Let connections and threads go; idempotent."""


def row_table(layer: int) -> str:
    """The name under which a layer's table is asked for."""
    return f"layer{layer}"


def check_description(
    found: RowSourceDescription, memory: str, tables: Mapping[str, tuple[int, int]], where: str
) -> None:
    """Refuse a source that has other rows than the ones that will be asked for.

    Args:
        found: what the source says.
        memory: content id of the memory that is wanted.
        tables: rows and values in a row of every table that is wanted, by name.
        where: who the source is.

    Raises:
        MismatchError: names the fact and both values.
    """
    if found.memory != memory:
        raise MismatchError("memory", expected=memory, found=found.memory, where=where)
    for name, shape in tables.items():
        table = found.tables.get(name)
        shown = (table.num_rows, table.row_dim) if table is not None else "no such table"
        if shown != shape:
            raise MismatchError(f"shape of {name}", expected=shape, found=shown, where=where)
