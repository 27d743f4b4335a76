"""Runner: one forward of the backbone over a batch.

The Hugging Face model runs as it is, over packed tokens [1, total] with explicit positions and
without a cache of its own; its attention calls `attention.paged_attention` with the step's batch.
Knows nothing about requests, sampling or text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from server.engine.batch import Batch
from server.engine.inputs import InputBuilder
from server.engine.kv_cache import KVCache
from server.engine.limits import EngineLimits


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Logits [rows, vocabulary] in the model's dtype, and each span's share of the rows."""

    logits: Tensor
    rows: tuple[slice, ...]


class Runner:
    """Holds the model, the KV cache and the input buffers."""

    def __init__(
        self, model: nn.Module, cache: KVCache, limits: EngineLimits, device: torch.device
    ) -> None:
        self.model = model
        self.cache = cache
        self._inputs = InputBuilder(limits, cache, device)

    @torch.inference_mode()
    def run(self, batch: Batch, engram_step: Any = None) -> StepOutput:
        """Compute the batch; keys and values of its tokens are in the cache afterwards.

        Running the same batch again gives the same cache and the same logits, except for
        convolution states in ``engram_step``, which the caller restores.
        """
        inputs = self._inputs.build(batch)
        output = self.model(
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            use_cache=False,
            logits_to_keep=inputs.logit_rows,
            engram_batch=inputs.attention,
            engram_step=engram_step,
        )
        return StepOutput(output.logits[0], inputs.rows)
