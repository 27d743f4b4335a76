"""DecodeGraph: one decode step of a fixed shape, captured once and replayed.

Rows of all Engram layers are waited for before the replay: a graph cannot stop in the middle. What
eager execution hides behind the layers before the first Engram layer is little beside what a graph
saves. Knows no scheduling and no fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engram_core.device import Device
from engram_core.static_step import StaticStep
from engram_core.step import EngramStep
from engram_core.version import MemoryVersion
from server.engine.attention_batch import AttentionBatch, DecodePart
from server.engine.graph_inputs import GraphInputs
from server.engine.inputs import StepInputs
from server.engine.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a graph is captured for: sequences, and KV blocks of each."""

    size: int
    width: int


class DecodeGraph:
    """A captured step.

    Args:
        model: the backbone. cache: its KV cache, with a block `spare` that no sequence gets.
        device: where both live; it supports graphs.
        shape: sequences and blocks.
        version: the memory that the step reads; None without.

    Raises:
        Exception: whatever the model or the device has against a capture.
    """

    def __init__(
        self,
        model: Any,
        cache: KVCache,
        device: Device,
        shape: GraphShape,
        spare: int,
        version: MemoryVersion | None,
    ) -> None:
        self._model, self._cache = model, cache
        # normal tensors also inside inference mode: only these count their changes
        with torch.inference_mode(False):
            self._inputs = GraphInputs(device, cache, shape.size, shape.width, spare)
            self._rows = torch.arange(shape.size, device=device.torch_device)
            self._memory = None
            if version is not None:
                self._memory = StaticStep(version, shape.size, device.torch_device)
        self._logits = torch.empty(0)
        self._compute()  # for real, in the spare block: libraries set themselves up
        given = [] if self._memory is None else self._memory.inputs
        self._graph = device.capture(self._compute, (self._inputs.numbers, *given))

    @torch.inference_mode()
    def _compute(self) -> None:
        inputs = self._inputs
        decode = DecodePart(inputs.blocks, inputs.lengths)  # its masks belong to this run alone
        output = self._model(
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            use_cache=False,
            logits_to_keep=self._rows,
            engram_batch=AttentionBatch(self._cache, inputs.slots, decode, []),
            engram_step=self._memory,
        )
        self._logits = output.logits[0]

    @torch.inference_mode()
    def run(self, inputs: StepInputs, step: EngramStep | None) -> Tensor:
        """Logits ``[sequences, vocabulary]``, valid until the next replay of any graph.

        Raises:
            TierError: a ticket of `step` failed; nothing was computed.
        """
        if self._memory is not None and step is not None:
            self._memory.fill(step)
        self._inputs.fill(inputs)
        self._graph.replay()
        if self._memory is not None and step is not None:
            self._memory.finish(step)
        return self._logits[: inputs.input_ids.shape[1]]
