"""Four-bit rows: two codes a byte and one fp16 scale a row.

A row's value is bf16(code * scale), with codes from -7 to 7. Knows tensors only.
"""

from __future__ import annotations

import torch

from engram_core.errors import ConfigError

LARGEST_CODE = 7
_BIAS = 8  # stored nibbles are 1 to 15
_TINY = float(torch.finfo(torch.float16).smallest_normal)


def quantise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 ``[k, d/2]`` (even columns in the low nibble) and scales fp16 ``[k]``.

    A row's largest value keeps the code 7, so a written row stays written (rows below 3e-5
    vanish). Raises ConfigError when the width is odd or a value does not fit fp16.
    """
    if rows.shape[1] % 2:
        raise ConfigError(f"row width {rows.shape[1]}; accepted: an even number for 4-bit rows")
    largest = rows.float().abs().amax(1)  # [k]
    scales = (largest / LARGEST_CODE).clamp_min(_TINY).half()
    if not bool(torch.isfinite(scales).all()):
        raise ConfigError("a row is not finite or too large; accepted: values below 458,000")
    nibbles = (rows.float() / scales.float()[:, None]).round().clamp(-LARGEST_CODE, LARGEST_CODE)
    stored = (nibbles + _BIAS).to(torch.uint8)
    return stored[:, ::2] | (stored[:, 1::2] << 4), scales


def dequantise(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The rows that `quantise` stored: bf16 ``[k, d]``."""
    nibbles = torch.stack([codes & 0xF, codes >> 4], dim=2).flatten(1)  # [k, d]
    values = (nibbles.float() - _BIAS) * scales.float()[:, None]
    return values.bfloat16()
