"""MemoryShape: how many rows a memory has, how wide they are and how many a token reads.

Knows sizes only: no hash constants beyond the primes that make a published number of rows exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from engram_core.config import EngramConfig
from engram_core.errors import ConfigError
from engram_core.layout import HashLayout
from engram_core.planner.records import RecordFormat
from engram_core.planner.validation import require, require_whole

MAX_ROWS = 10**13
MAX_COLUMNS = 4096  # of all layers together: each has a prime of its own
MAX_ORDER = 64


@dataclass(frozen=True, slots=True)
class MemoryShape:
    """The tables of a memory.

    Attributes:
        rows: rows of each Engram layer's table.
        orders: n-gram orders, ascending, each >= 2.
        num_heads: hash heads per order.
        record: format of a row.
    """

    rows: tuple[int, ...]
    orders: tuple[int, ...]
    num_heads: int
    record: RecordFormat

    def __post_init__(self) -> None:
        require(bool(self.rows), "rows", self.rows, "a number for each of the layers")
        _check_orders(self.orders)
        require_whole("num_heads", self.num_heads, 1, MAX_COLUMNS)
        _check_columns(self.num_layers, self.orders, self.num_heads)
        for rows in self.rows:
            require_whole("rows", rows, self.columns, MAX_ROWS)

    @classmethod
    def from_rows_per_head(
        cls,
        rows_per_head: int,
        num_layers: int,
        orders: Sequence[int],
        num_heads: int,
        record: RecordFormat,
    ) -> Self:
        """The shape whose columns have the primes from `rows_per_head` on (engram-spec 3)."""
        _check_orders(tuple(orders))
        require_whole("num_heads", num_heads, 1, MAX_COLUMNS)
        require_whole("num_layers", num_layers, 1, MAX_COLUMNS)
        _check_columns(num_layers, orders, num_heads)
        most = MAX_ROWS // (2 * len(orders) * num_heads)  # room for the primes above it
        require_whole("rows_per_head", rows_per_head, 2, most)
        config = hash_config(rows_per_head, tuple(range(num_layers)), tuple(orders), num_heads)
        rows = HashLayout.build(config, compressed_size=1).rows
        return cls(tuple(rows.values()), tuple(orders), num_heads, record)

    @property
    def num_layers(self) -> int:
        """Layers that read the memory."""
        return len(self.rows)

    @property
    def columns(self) -> int:
        """Rows that a token reads in one layer."""
        return len(self.orders) * self.num_heads

    @property
    def rows_per_token(self) -> int:
        """Rows that a token reads in all layers."""
        return self.num_layers * self.columns

    @property
    def total_rows(self) -> int:
        """Rows of all layers."""
        return sum(self.rows)

    @property
    def parameters(self) -> int:
        """Values of all rows; scales are not counted."""
        return self.total_rows * self.record.row_dim

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows, as records without page padding."""
        return self.total_rows * self.record.bytes

    def shard_rows(self, num_heads: int) -> tuple[int, ...]:
        """Rows of each layer that belong to `num_heads` of the heads of every order."""
        return tuple(-(-rows * num_heads // self.num_heads) for rows in self.rows)

    def stored_bytes(self, num_heads: int) -> int:
        """Bytes of that shard, packed into pages."""
        return sum(self.record.stored_bytes(rows) for rows in self.shard_rows(num_heads))


def hash_config(
    rows_per_head: int, layer_ids: tuple[int, ...], orders: tuple[int, ...], num_heads: int
) -> EngramConfig:
    """A configuration for addresses alone: what computes with the rows is left at one."""
    return EngramConfig(
        form="v41",
        layer_ids=layer_ids,
        orders=orders,
        num_heads=num_heads,
        rows_per_head=(rows_per_head,) * len(orders),
        head_dim=1,
        hidden_size=1,
        pad_id=0,
    )


def _check_orders(orders: Sequence[int]) -> None:
    is_whole = all(isinstance(order, int) and 2 <= order <= MAX_ORDER for order in orders)
    ok = bool(orders) and is_whole and list(orders) == sorted(set(orders))
    require(ok, "orders", list(orders), f"distinct ascending numbers from 2 to {MAX_ORDER}")


def _check_columns(num_layers: int, orders: Sequence[int], num_heads: int) -> None:
    columns = num_layers * len(orders) * num_heads
    if columns > MAX_COLUMNS:
        raise ConfigError(
            f"num_layers x orders x num_heads is {num_layers} x {len(orders)} x {num_heads} = "
            f"{columns}; accepted: up to {MAX_COLUMNS}"
        )
