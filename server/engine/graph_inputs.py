"""GraphInputs: the integers of a decode step in tensors that never move, filled by one copy.

Places without a sequence compute token 0 in a block of their own, which no sequence ever reads.
Knows no model and no graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engram_core.device import Device
from server.engine.inputs import StepInputs
from server.engine.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class _Parts:
    """Views of one flat int64 array, on the host or on the device."""

    ids: Any  # [size]
    positions: Any  # [size]
    slots: Any  # [size]: where keys and values go
    lengths: Any  # [size]: keys that each token sees, its own included
    blocks: Any  # [size, width]

    @classmethod
    def of(cls, flat: Any, size: int) -> _Parts:
        rows = flat[: 4 * size].reshape(4, size)
        return cls(rows[0], rows[1], rows[2], rows[3], flat[4 * size :].reshape(size, -1))


class GraphInputs:
    """Inputs of up to `size` sequences of at most `width` blocks.

    At first, and after `fill` from the first place without a sequence on, the inputs are those of
    a sequence of one token in the block `spare`.

    Attributes:
        numbers: what `fill` writes.
        input_ids, position_ids: int64 ``[1, size]``. slots, lengths: int64 ``[size]``.
        blocks: int64 ``[size * width]``.
    """

    def __init__(self, device: Device, cache: KVCache, size: int, width: int, spare: int) -> None:
        self._device = device
        self._spare = spare
        self._spare_slot = spare * cache.block_size
        count = size * (4 + width)
        self._staging = device.pinned_empty((count,), torch.int64)
        self._host = _Parts.of(self._staging.numpy(), size)
        self.numbers = torch.zeros(count, dtype=torch.int64, device=device.torch_device)
        parts = _Parts.of(self.numbers, size)
        self.input_ids = parts.ids.unsqueeze(0)
        self.position_ids = parts.positions.unsqueeze(0)
        self.slots, self.lengths = parts.slots, parts.lengths
        self.blocks = parts.blocks.reshape(-1)
        self._uploaded = self._device.event(None)
        self._write(0, None)

    def fill(self, inputs: StepInputs) -> None:
        """Take over a step of decoding sequences, which was built on the host."""
        self._uploaded.wait()  # the copy before this one may still read what is written now
        self._write(inputs.input_ids.shape[1], inputs)

    def _write(self, count: int, inputs: StepInputs | None) -> None:
        host = self._host
        if inputs is not None and inputs.attention.decode is not None:
            decode = inputs.attention.decode
            blocks = decode.blocks.view(count, -1)
            host.ids[:count] = inputs.input_ids[0]
            host.positions[:count] = inputs.position_ids[0]
            host.slots[:count] = inputs.attention.slots
            host.lengths[:count] = decode.lengths
            host.blocks[:count, : blocks.shape[1]] = blocks
            host.blocks[:count, blocks.shape[1] :] = 0
        host.ids[count:] = host.positions[count:] = 0
        host.slots[count:], host.lengths[count:] = self._spare_slot, 1
        host.blocks[count:] = self._spare
        self._uploaded = self._device.copy_async(self._staging, self.numbers, None)
