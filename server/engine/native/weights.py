"""A linear layer's weight in one or two packed formats, and which of them a step reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from server.engine.native.formats import FORMATS, LANES, Bytes, Format, PackedWeight, aligned, pack
from server.engine.native.records import WEIGHT


@dataclass(frozen=True, slots=True)
class KernelWeight:
    """A packed matrix with its bias, and the record that compiled code reads.

    Attributes:
        packed: the matrix.
        bias: float32 bytes, one for each output of the padded matrix, or None.
        record: one `records.WEIGHT`.
    """

    packed: PackedWeight
    bias: Bytes | None
    record: npt.NDArray[np.void]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, form: Format) -> KernelWeight:
        """Pack a matrix [outputs, inputs] and its bias [outputs]."""
        packed = pack(weight, form)
        numbers = None if bias is None else _padded_bias(bias, packed.num_blocks * LANES)
        record = aligned(np.zeros(1, dtype=WEIGHT)).view(WEIGHT)
        record["form"] = FORMATS.index(form)
        record["num_inputs"], record["num_blocks"] = packed.num_inputs, packed.num_blocks
        record["data"], record["block_bytes"] = packed.address, packed.block_bytes
        record["bias"] = 0 if numbers is None else numbers.ctypes.data
        return cls(packed, numbers, record)

    @property
    def nbytes(self) -> int:
        """Memory of the matrix."""
        return self.packed.data.nbytes


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """Blocks of 16 rows of both matrices in turn, so that one thread has what belongs together."""
    size = gate.shape[1]
    return torch.stack((gate.view(-1, LANES, size), up.view(-1, LANES, size)), 1).reshape(-1, size)


def float_vector(vector: Tensor) -> Bytes:
    """A vector as float32 at an address that stays."""
    return aligned(vector.detach().float().cpu().numpy())


def address_of(data: Any) -> int:
    """Where an array begins; 0 for None."""
    return 0 if data is None else int(data.ctypes.data)


def _padded_bias(bias: Tensor, size: int) -> Bytes:
    padded = torch.zeros(size)
    padded[: len(bias)] = bias.detach().float().cpu()
    return aligned(padded.numpy())
