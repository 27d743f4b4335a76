"""Projection: a memory's keys and values, by whichever product is the faster one for its rows.

A prompt's rows are many, and where the processor multiplies whole matrices (AMX) torch's product
is ahead of the kernels there; a decode step's rows are few. Which one serves many rows is measured
once. Knows one linear layer.
"""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from server.engine.native.native_linear import NativeLinear

MANY_ROWS = 512
_ROUNDS = 5


class Projection(nn.Module):
    """y = x W^T + b in bfloat16.

    Args:
        linear: the original, whose weight stays in memory anyway.
        native: the same on compiled kernels.
        is_fixed: a row must not depend on how many come with it: the kernels alone.

    Attributes:
        uses_torch: whether many rows go to torch.
    """

    def __init__(self, linear: nn.Linear, native: NativeLinear, *, is_fixed: bool) -> None:
        super().__init__()
        self._linear, self._native = linear, native
        self.uses_torch = not is_fixed and self._is_torch_faster()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[rows, in_features]`` to ``[rows, out_features]``."""
        if self.uses_torch and len(x) >= MANY_ROWS:
            return F.linear(x, self._linear.weight, self._linear.bias)
        out: Tensor = self._native(x)
        return out

    @torch.inference_mode()
    def _is_torch_faster(self) -> bool:
        x = torch.ones(MANY_ROWS, self._linear.in_features, dtype=torch.bfloat16)
        ratios = []
        for _ in range(_ROUNDS):
            started_s = time.perf_counter()
            self._native(x)
            turned_s = time.perf_counter()
            F.linear(x, self._linear.weight, self._linear.bias)
            ratios.append((time.perf_counter() - turned_s) / (turned_s - started_s))
        return median(ratios) < 1.0
