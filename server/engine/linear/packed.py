"""PackedLinear: a bfloat16 linear layer on the CPU whose weight was reordered once.

nn.Linear reorders its weight in every call, which for a few tokens costs more than the product
itself. The packed weight takes the place of the original, so there is no second copy. It carries
no gradient: training and editing load the model unpacked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_ops: Any = torch.ops.mkldnn


class PackedLinear(nn.Module):
    """y = x W^T + b; W is kept in oneDNN's own layout."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._weight: Tensor = _ops._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        out: Tensor = _ops._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out

    def extra_repr(self) -> str:
        """What print shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def can_pack(linear: nn.Linear) -> bool:
    """Whether this build and processor have the packed product, and the weight its type."""
    weight = linear.weight
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and hasattr(_ops, "_reorder_linear_weight")
        and bool(_ops._is_mkldnn_bf16_supported())
    )
