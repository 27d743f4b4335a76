"""ServedOrders: the n-gram orders whose rows a memory reads; all others read as never written.

A switch of serving: with fewer orders a token costs fewer rows, and what they would have said is
missing. Knows how the rows of a token are laid out; knows no hashing and no tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from engram_core.config import EngramConfig, check

if TYPE_CHECKING:  # the planner hashes and needs no torch
    import torch


@dataclass(frozen=True, slots=True)
class ServedOrders:
    """Some orders of one memory, or all of them.

    Attributes:
        config: the memory's configuration.
        orders: those that are read, ascending.

    Raises:
        ConfigError: there are none, the memory lacks one, one is named twice, or one is missing
            that the hit rule needs: its rows would be zero, so no position could contribute.
    """

    config: EngramConfig
    orders: tuple[int, ...]

    def __post_init__(self) -> None:
        whole, needed = self.config.orders, self.config.min_hit_orders
        are_some = bool(self.orders) and set(self.orders) <= set(whole)
        is_valid = are_some and self.orders == tuple(sorted(set(self.orders)))
        check(
            is_valid, "orders", list(self.orders), f"some of the memory's {list(whole)}, each once"
        )
        check(
            set(needed) <= set(self.orders),
            "orders",
            list(self.orders),
            f"some of the memory's {list(whole)}, with {list(needed)} among them, without which "
            "its hit rule would let no position contribute",
        )

    @classmethod
    def of(cls, config: EngramConfig, wanted: Sequence[int] | None = None) -> Self:
        """What an operator asked of a memory, in any sequence; None stands for every order."""
        return cls(config, config.orders if wanted is None else tuple(sorted(wanted)))

    @property
    def dropped(self) -> tuple[int, ...]:
        """Orders of the memory that are not read."""
        return tuple(order for order in self.config.orders if order not in self.orders)

    @property
    def num_columns(self) -> int:
        """Rows that one token reads in one layer."""
        return len(self.orders) * self.config.num_heads

    @property
    def row_width(self) -> int:
        """Values of the rows that one token reads in one layer."""
        return self.num_columns * self.config.head_dim

    @property
    def reach(self) -> int:
        """Newest tokens that decide what is read."""
        lags = self.config.lags or (0,) * len(self.config.orders)
        return max(self.config.orders[place] + lags[place] for place in self.places)

    @property
    def places(self) -> tuple[int, ...]:
        """Where the served orders stand among the memory's."""
        return tuple(self.config.orders.index(order) for order in self.orders)

    @property
    def why(self) -> str:
        """What is served, for people."""
        served = ", ".join(map(str, self.orders))
        if not self.dropped:
            return f"{served}: all that the memory has"
        return f"{served}: as told; rows of {', '.join(map(str, self.dropped))} read as zeros"

    def widen(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows ``[tokens, row_width]`` as the module reads them: ``[tokens, F]``.

        Rows of dropped orders are zeros. Where none is dropped, `rows` comes back as it is.
        """
        if not self.dropped:
            return rows
        width = self.config.num_heads * self.config.head_dim  # of an order
        wide = rows.new_zeros(len(rows), self.config.memory_dim)
        for index, place in enumerate(self.places):  # slices: an index would cross to the device
            wide[:, place * width : (place + 1) * width] = rows[:, index * width :][:, :width]
        return wide
