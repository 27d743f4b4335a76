"""Compares a fused layer with the one that it is to replace, in the model's dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from server.engine.fuse.calls import Call

_TOLERANCE_FULL = 1e-5  # float32 and wider: only the order of summation differs
_HALF_STEPS = 4  # bfloat16 and float16: as many roundings of one number


@torch.inference_mode()
def difference(original: nn.Module, fused: nn.Module, call: Call | None) -> str | None:
    """Why the fused layer cannot take the place of the original; None when it can.

    Both are called as the model called the original, with a random hidden state.
    """
    if call is None or call.hidden is None or call.more_args:
        return "is not called with a hidden state and nothing else without a name"
    if call.kwargs.get("position_embeddings") is None:
        return "is given no rotary embeddings"
    hidden = _random_state(call.hidden)
    expected = original.forward(hidden, **call.kwargs)
    if not isinstance(expected, Tensor):
        return f"returns a {type(expected).__name__} instead of a tensor"
    hidden = _no_larger(hidden, expected - hidden)
    expected = original.forward(hidden, **call.kwargs)  # without its hooks: they are carried over
    try:
        found = fused.forward(hidden, **call.kwargs)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the original does not have it
        return f"cannot be computed fused: {failure}"
    error, accepted = relative_error(found, expected), tolerance(hidden.dtype)
    if error <= accepted:  # NaN is not
        return None
    return f"computes something else: a relative difference of {error:.2g}, accepted: {accepted}"


def tolerance(dtype: torch.dtype) -> float:
    """The largest relative difference of a token's hidden state that rounding explains."""
    return _TOLERANCE_FULL if dtype.itemsize >= 4 else _HALF_STEPS * torch.finfo(dtype).eps


def _random_state(like: Tensor) -> Tensor:
    """Normal numbers of the usual size of those in ``like``; a few outliers do not count."""
    generator = torch.Generator().manual_seed(0)  # on the CPU: the same numbers on every device
    scale = like.float().abs().median().clamp_min(1e-4)
    numbers = torch.randn(like.shape, generator=generator).to(like.device)
    return (numbers * scale).to(like.dtype)


def _no_larger(hidden: Tensor, added: Tensor) -> Tensor:
    """The state, shrunk to the size of what the layer adds to it.

    In a large residual a wrong layer would not show. The norms make what is added independent of
    the size.
    """
    ratio = added.float().norm() / hidden.float().norm()
    shrunk: Tensor = hidden * ratio.clamp(1e-2, 1.0).to(hidden.dtype)
    return shrunk


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest of all tokens."""
    errors = (found.double() - expected.double()).norm(dim=-1)
    return float((errors / expected.double().norm(dim=-1).clamp_min(1e-30)).max())
