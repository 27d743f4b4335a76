"""How a weight matrix is packed for the kernels, and the number formats it may have.

Columns (outputs) lie in blocks of 16, inputs in pairs, so that one load brings one pair of inputs
for 16 columns. A block is contiguous: a product reads memory from one end to the other.

    bf16   [blocks][pairs][16][2] bfloat16
    int8   [blocks]([pairs][2][16] int8, then [16] float32 scales): one scale per column
    int4   [blocks][groups]([16] bfloat16 scales, then [16 pairs][16] bytes): a byte holds a pair's
           codes plus 8, the first input in its low half; a group is 32 inputs of one column

Knows no models; numpy and torch only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram_core.errors import ConfigError
from server.engine.aligned import aligned_bytes

Format = Literal["bf16", "int8", "int4"]
FORMATS: tuple[Format, ...] = ("bf16", "int8", "int4")

LANES = 16  # outputs of a block
GROUP = 32  # inputs that share a scale in int4
_INT8_MAX = 127

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix [num_outputs, num_inputs] in one of the formats.

    Attributes:
        form: which one.
        num_inputs, num_outputs: its shape; outputs are padded with zeros to whole blocks.
        data: its bytes, aligned for vector loads.
    """

    form: Format
    num_inputs: int
    num_outputs: int
    data: Bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of 16 outputs."""
        return -(-self.num_outputs // LANES)

    @property
    def block_bytes(self) -> int:
        """Distance of one block from the next."""
        return self.data.nbytes // self.num_blocks

    @property
    def address(self) -> int:
        """Where the data begins."""
        return int(self.data.ctypes.data)


def why_not(form: Format, num_inputs: int) -> str | None:
    """Why a matrix with so many inputs cannot have a format; None when it can."""
    unit = GROUP if form == "int4" else 2
    if num_inputs % unit:
        return f"{num_inputs} inputs are no multiple of {unit}, which {form} needs"
    return None


def pack(weight: Tensor, form: Format) -> PackedWeight:
    """Pack a matrix [outputs, inputs], rounding to the nearest number of the format.

    Raises:
        ConfigError: its shape does not fit the format.
    """
    reason = why_not(form, weight.shape[1])
    if reason is not None:
        raise ConfigError(f"a weight matrix cannot be packed: {reason}")
    num_outputs, num_inputs = weight.shape
    padded = torch.zeros(-(-num_outputs // LANES) * LANES, num_inputs, dtype=weight.dtype)
    padded[:num_outputs] = weight.detach().cpu()
    packing = {"bf16": _pack_bf16, "int8": _pack_int8, "int4": _pack_int4}[form]
    return PackedWeight(form, num_inputs, num_outputs, aligned(packing(padded)))


def unpack(packed: PackedWeight) -> Tensor:
    """The matrix that the kernels multiply by, float32 [outputs, inputs]."""
    unpacking = {"bf16": _unpack_bf16, "int8": _unpack_int8, "int4": _unpack_int4}[packed.form]
    rows = packed.data.reshape(packed.num_blocks, -1)
    return unpacking(rows, packed.num_inputs)[: packed.num_outputs]


def aligned(data: npt.NDArray[np.generic]) -> Bytes:
    """A copy whose first byte lies on a cache line."""
    found = aligned_bytes(data.nbytes)
    found[:] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return found


def _pack_bf16(weight: Tensor) -> Bytes:
    blocks = weight.to(torch.bfloat16).view(-1, LANES, weight.shape[1] // 2, 2)
    return blocks.permute(0, 2, 1, 3).contiguous().view(torch.uint8).numpy()


def _unpack_bf16(rows: Bytes, num_inputs: int) -> Tensor:
    words = torch.from_numpy(rows).view(torch.bfloat16).view(len(rows), num_inputs // 2, LANES, 2)
    return words.permute(0, 2, 1, 3).reshape(-1, num_inputs).float()


def _pack_int8(weight: Tensor) -> Bytes:
    exact = weight.float()
    scales = exact.abs().amax(1).clamp_min(1e-30) / _INT8_MAX
    codes = torch.round(exact / scales[:, None]).to(torch.int8)
    blocks = codes.view(-1, LANES, weight.shape[1] // 2, 2).permute(0, 2, 3, 1)
    parts = (
        blocks.reshape(len(blocks), -1).contiguous().view(torch.uint8),
        scales.view(-1, LANES).contiguous().view(torch.uint8),
    )
    return torch.cat(parts, 1).numpy()


def _unpack_int8(rows: Bytes, num_inputs: int) -> Tensor:
    data = torch.from_numpy(rows)
    codes = data[:, : num_inputs * LANES].contiguous().view(torch.int8)
    scales = data[:, num_inputs * LANES :].contiguous().view(torch.float32)
    blocks = codes.view(len(rows), num_inputs // 2, 2, LANES).permute(0, 3, 1, 2)
    return blocks.reshape(-1, num_inputs).float() * scales.reshape(-1, 1)


def _pack_int4(weight: Tensor) -> Bytes:
    groups = weight.float().view(-1, LANES, weight.shape[1] // GROUP, GROUP)
    # the end that is farther from zero gets the code -8, which has no counterpart
    far = groups.gather(3, groups.abs().argmax(3, keepdim=True)).squeeze(3)
    scales = _nearest_scales(groups, far)
    codes = torch.round(groups / scales.float()[..., None]).nan_to_num(0.0).clamp(-8, 7) + 8
    pairs = codes.to(torch.uint8).view(*codes.shape[:3], GROUP // 2, 2)
    packed = pairs[..., 0] | (pairs[..., 1] << 4)  # [blocks, lanes, groups, pairs]
    parts = (
        scales.permute(0, 2, 1).contiguous().view(torch.uint8),  # [blocks, groups, 2 * lanes]
        packed.permute(0, 2, 3, 1).flatten(2),
    )
    return torch.cat(parts, 2).contiguous().numpy()


def _nearest_scales(groups: Tensor, far: Tensor) -> Tensor:
    """Of a few scales for each group, the one with the smallest squared error; bfloat16."""
    best = torch.ones_like(far).to(torch.bfloat16)
    least = torch.full_like(far, torch.inf)
    for divisor in (-8.0, -7.75, -7.5, -7.25, -7.0, 7.0, 7.5):
        scales = (far / divisor).to(torch.bfloat16)
        scales = torch.where(scales == 0, torch.ones_like(scales), scales)
        wide = scales.float()[..., None]
        error = (torch.round(groups / wide).clamp(-8, 7) * wide - groups).square().sum(3)
        is_better = error < least
        best, least = torch.where(is_better, scales, best), torch.where(is_better, error, least)
    return best


def _unpack_int4(rows: Bytes, num_inputs: int) -> Tensor:
    data = torch.from_numpy(rows).view(len(rows), num_inputs // GROUP, -1)
    scales = data[..., : 2 * LANES].contiguous().view(torch.bfloat16).float()
    packed = data[..., 2 * LANES :].view(len(rows), -1, GROUP // 2, LANES)
    codes = torch.stack([packed & 15, packed >> 4], 3).float() - 8  # [.., pairs, 2, lanes]
    exact = codes * scales[:, :, None, None, :]
    return exact.permute(0, 4, 1, 2, 3).reshape(-1, num_inputs)
