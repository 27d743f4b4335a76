"""Operations that serving rests on, each run on a device and on the CPU and compared.

Backends beside CUDA lack one now and then; this finds it before a request does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

Values = Mapping[str, torch.Tensor]
Operation = Callable[[Values], torch.Tensor]

TOLERANCE = (
    2e-2  # relative to the largest value: bfloat16 rounds at 4e-3, a wrong result is far off
)


def make_values() -> dict[str, torch.Tensor]:
    """Small inputs with fixed values, on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    mask = torch.zeros(4, 1, 1, 64)
    mask[1:, ..., 40:] = float("-inf")
    return {
        "x": randn(4, 64),
        "half": randn(4, 64).bfloat16(),
        "weight": randn(32, 64).bfloat16(),
        "query": randn(4, 2, 3, 32).bfloat16(),
        "keys": randn(4, 2, 64, 32).bfloat16(),
        "mask": mask.bfloat16(),
        "cache": torch.zeros(16, 64),
        "ids": torch.tensor([9, 3, 3, 12]),
        "slots": torch.tensor([5, 1, 9, 2]),
        "number": torch.tensor([0.4], dtype=torch.float64),
    }


OPERATIONS: dict[str, Operation] = {
    "linear in bfloat16": lambda v: linear(v["half"], v["weight"]),
    "attention with a mask in bfloat16": lambda v: scaled_dot_product_attention(
        v["query"], v["keys"], v["keys"], attn_mask=v["mask"]
    ),
    "causal attention in bfloat16": lambda v: scaled_dot_product_attention(
        v["keys"], v["keys"], v["keys"], is_causal=True
    ),
    "index_copy_": lambda v: v["cache"].clone().index_copy_(0, v["slots"], v["x"]),
    "index_copy_ of bfloat16 rows": lambda v: (
        v["weight"].clone().index_copy_(0, v["slots"], v["half"])
    ),
    "index_select": lambda v: (
        v["cache"].index_copy(0, v["slots"], v["x"]).index_select(0, v["ids"])
    ),
    "rsqrt and sigmoid": lambda v: torch.rsqrt(v["x"].square().mean(-1) + 1e-6).sigmoid(),
    "copysign and where": lambda v: torch.where(v["x"] > 0, v["x"].abs().copysign(v["x"]), 1.0),
    "logsumexp": lambda v: torch.logsumexp(v["x"], -1),
    "argmax": lambda v: v["x"].argmax(-1),
    "topk": lambda v: torch.topk(v["x"], 5).values,
    "cumulative sum in float64": lambda v: torch.softmax(v["x"], -1, torch.float64).cumsum(-1),
    "searchsorted in float64": lambda v: torch.searchsorted(
        torch.softmax(v["x"][0], -1, torch.float64).cumsum(0), v["number"], right=True
    ),
}


def disagreements(device: torch.device) -> list[str]:
    """One sentence for every operation that fails on `device` or differs from the CPU."""
    values = make_values()
    moved = {name: tensor.to(device) for name, tensor in values.items()}
    found = (_compare(name, run, values, moved) for name, run in OPERATIONS.items())
    return [sentence for sentence in found if sentence is not None]


def _compare(name: str, run: Operation, values: Values, moved: Values) -> str | None:
    expected = run(values).double()
    try:
        found = run(moved).cpu().double()
    except Exception as error:  # noqa: BLE001 - a backend may refuse in any way
        first_line = (str(error).strip().splitlines() or [""])[0]
        return f"{name} is refused ({type(error).__name__}: {first_line})"
    error_share = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    return None if error_share <= TOLERANCE else f"{name} differs by {error_share:.2g}"
