"""RowBatch: the rows that one training step reads and moves. Knows no model and no loss."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from engram_core.retrofit.row_parameters import RowParameters


class RowBatch:
    """The rows that one batch reads, as a leaf of the autograd graph.

    Args:
        parameters: the layer's trainable rows.
        slots: places in `parameters.values`, ``[tokens, columns]``.

    Attributes:
        embeddings: float32 ``[tokens, columns * row_dim]``.
    """

    def __init__(self, parameters: RowParameters, slots: torch.Tensor) -> None:
        self._parameters = parameters
        self._slots, inverse = torch.unique(slots, return_inverse=True)
        self._leaf = parameters.values[self._slots].requires_grad_()
        # not by indexing: its backward adds repeated rows in whatever order threads come
        self.embeddings = F.embedding(inverse, self._leaf).flatten(1)

    def step(self, learning_rate: float) -> None:
        """Move the rows along the gradient that a backward pass has left."""
        gradient = self._leaf.grad
        if gradient is not None:
            self._parameters.update(self._slots, gradient, learning_rate)
