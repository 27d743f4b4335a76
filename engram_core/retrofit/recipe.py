"""Recipe: the numbers of a training run, recorded in the artefact it makes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engram_core.config import EngramConfig


@dataclass(frozen=True, slots=True)
class Recipe:
    """How facts are written into a memory. The defaults reach exact recall on a small backbone.

    Attributes:
        layers, orders, num_heads, head_dim, rows_per_head: shape of the memory.
        min_hit_orders: the hit rule that the artefact declares (see `EngramConfig`).
        row_learning_rate, dense_learning_rate: of the rows' and the module's Adam.
        confidence: probability from which a token leaves the loss.
        tail_weight: weight of keeping the backbone's output at the prompt's tail, where rows are
            written but the next token is not the value's.
        epochs: visits of a fact, slept ones included.
    """

    layers: tuple[int, ...] = (20, 26)
    orders: tuple[int, ...] = (3, 4, 5)
    num_heads: int = 2
    head_dim: int = 64
    rows_per_head: int = 140_000
    min_hit_orders: tuple[int, ...] = (3, 4)
    row_learning_rate: float = 0.3
    dense_learning_rate: float = 3e-3
    batch_size: int = 32
    epochs: int = 36
    num_contexts: int = 3
    sleep_epochs: int = 3
    confidence: float = 0.95
    tail_weight: float = 1.0
    seed: int = 0

    def config(self, hidden_size: int, pad_id: int) -> EngramConfig:
        """The memory's configuration for a backbone of this width."""
        return EngramConfig(
            form="v41",
            layer_ids=self.layers,
            orders=self.orders,
            num_heads=self.num_heads,
            rows_per_head=(self.rows_per_head,) * len(self.orders),
            head_dim=self.head_dim,
            hidden_size=hidden_size,
            pad_id=pad_id,
            seed=self.seed,
            norm_eps=1e-6,  # a zero key must not blow its gradient up
            use_bias=False,
            min_hit_orders=self.min_hit_orders,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, for the artefact's training record."""
        return asdict(self)
