"""Which format is the faster one for how many rows, measured on this machine."""

from __future__ import annotations

import time
from statistics import median

import torch

from server.engine.native.choice import FormatChoice
from server.engine.native.formats import Format
from server.engine.native.native_linear import NativeLinear
from server.engine.native.team import Team

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_INPUTS, _OUTPUTS = 1024, 1024
_NUM_WEIGHTS = 40  # together larger than most caches, as a model's are
_ROUNDS = 5


def measured_choice(team: Team) -> FormatChoice:
    """int8 for as many rows as it is faster than bfloat16, beside bfloat16 for more."""
    torch_weights = torch.randn(_OUTPUTS, _INPUTS, generator=torch.Generator().manual_seed(0))
    layer = torch.nn.Linear(_INPUTS, _OUTPUTS, bias=False, device="meta")
    layer.weight = torch.nn.Parameter(torch_weights.bfloat16(), requires_grad=False)
    held: dict[Format, list[NativeLinear]] = {
        form: [NativeLinear(layer, team, FormatChoice(form, form)) for _ in range(_NUM_WEIGHTS)]
        for form in ("int8", "bf16")
    }
    for num_rows in _ROWS:
        if not _is_faster(held["int8"], held["bf16"], num_rows):
            return FormatChoice("int8", "bf16", num_rows)
    return FormatChoice("int8", "int8")


def _is_faster(one: list[NativeLinear], other: list[NativeLinear], num_rows: int) -> bool:
    x = torch.ones(num_rows, _INPUTS, dtype=torch.bfloat16)
    ratios = [_seconds(one, x) / _seconds(other, x) for _ in range(_ROUNDS)]
    return median(ratios) < 1.0


def _seconds(linears: list[NativeLinear], x: torch.Tensor) -> float:
    start_s = time.perf_counter()
    for linear in linears:
        linear(x)
    return time.perf_counter() - start_s
