"""One arm: a stream of requests through the model, and what each of them took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.documents import TokenIds
from benchmarks.three_arm.lookups import LookupCost, Lookups
from benchmarks.three_arm.shape import NUM_LAYERS
from engram_core.device import Device

# An Engram layer: hidden [tokens, G, D] and rows [tokens, F] to hidden.
Layer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RequestCost:
    """One request.

    Attributes:
        total_s: from the end of the request before it, or its arrival, to its last layer.
        lookup: what its rows cost.
    """

    total_s: float
    lookup: LookupCost


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the model.

    Attributes:
        name: in the table. dtype: of compute.
        lookups: how rows come. layers: the Engram layers. embedding: in front of the first block.
        device: where compute runs.
    """

    name: str
    dtype: torch.dtype
    lookups: Lookups
    layers: Mapping[int, Layer]
    embedding: Callable[[torch.Tensor], torch.Tensor]
    device: Device

    @torch.inference_mode()
    def run(self, requests: Sequence[TokenIds]) -> list[RequestCost]:
        """Serve requests one after the other; each arrives when the one before it begins.

        The first has nobody before it whose computing could hide its lookup: callers leave it out.
        """
        costs = []
        pending = self.lookups.begin(requests[0])
        for index, token_ids in enumerate(requests):
            started_s = time.perf_counter()
            following = None
            if index + 1 < len(requests):
                following = self.lookups.begin(requests[index + 1])
            self._forward(token_ids, pending.rows)
            costs.append(RequestCost(time.perf_counter() - started_s, pending.end()))
            if following is not None:
                pending = following
        return costs

    @torch.inference_mode()
    def answer(self, token_ids: TokenIds) -> torch.Tensor:
        """The last hidden state ``[tokens, G, D]`` of one request, float32, for comparison."""
        pending = self.lookups.begin(token_ids)
        hidden = self._forward(token_ids, pending.rows)
        pending.end()
        return hidden.float().cpu()

    def _forward(self, token_ids: TokenIds, rows: Callable[[int], torch.Tensor]) -> torch.Tensor:
        hidden = self.embedding(torch.from_numpy(token_ids).to(self.device.torch_device))
        for index in range(NUM_LAYERS):  # every block is the identity
            layer = self.layers.get(index)
            if layer is not None:
                hidden = layer(hidden, rows(index))
        self.device.synchronize()
        return hidden
