"""NativeLinear: a linear layer on the CPU whose product compiled kernels compute."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from server.engine.native.choice import FormatChoice
from server.engine.native.formats import Format
from server.engine.native.program import PRODUCT
from server.engine.native.team import Team
from server.engine.native.weights import KernelWeight


class NativeLinear(nn.Module):
    """y = x W^T + b with a packed W, for inputs of any float dtype.

    Args:
        linear: what it replaces.
        team: computes it.
        choice: formats of the weight.
        is_float: give float32 whatever the input's dtype is, as a head may.
        reuses_result: write every result to the same memory: it is valid until the next call.
            Logits are so large that the system would hand out new pages every time.
    """

    def __init__(
        self,
        linear: nn.Linear,
        team: Team,
        choice: FormatChoice,
        *,
        is_float: bool = False,
        reuses_result: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.choice, self.reuses_result = choice, reuses_result
        self._kept = torch.empty(0)
        self._team, self._is_float = team, is_float
        self._weights: dict[Format, KernelWeight] = {
            form: KernelWeight.of(linear.weight, linear.bias, form) for form in choice.formats
        }

    @property
    def nbytes(self) -> int:
        """Memory of the weight in all its formats."""
        return sum(weight.nbytes for weight in self._weights.values())

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        given = x.to(torch.bfloat16).contiguous()
        num_rows = given.numel() // self.in_features
        dtype = (
            torch.bfloat16 if x.dtype == torch.bfloat16 and not self._is_float else torch.float32
        )
        out = self._result((*x.shape[:-1], self.out_features), dtype)
        if num_rows:
            self._team.run(
                kind=PRODUCT,
                weight=self._weights[self.choice.of(num_rows)].record.ctypes.data,
                num_rows=num_rows,
                input=given.data_ptr(),
                result=out.data_ptr(),
                result_is_float=int(dtype == torch.float32),
                num_columns=self.out_features,
            )
        return out if self._is_float else out.to(x.dtype)

    def _result(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if not self.reuses_result:
            return torch.empty(shape, dtype=dtype)
        size = math.prod(shape)
        if size > self._kept.numel() or dtype != self._kept.dtype:
            self._kept = torch.empty(size, dtype=dtype)
        return self._kept[:size].view(shape)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.choice}"
