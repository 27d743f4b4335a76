"""FusedNorm: RMSNorm in the arithmetic of transformers, in as few operations as that allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from server.engine.fuse.parts import NormParts


class FusedNorm(nn.Module):
    """x / rms(x) in float32, cast to the dtype of x, times the weight."""

    def __init__(self, parts: NormParts) -> None:
        super().__init__()
        self.weight = parts.weight
        self.eps = parts.eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if x.dtype == torch.float32:
            return rms_norm(x, self.weight.shape, self.weight, self.eps)
        # a half is rounded before the weight is applied, as the original does
        normed = rms_norm(x.to(torch.float32), self.weight.shape, None, self.eps)
        return normed.to(x.dtype) * self.weight
