"""LayerStack: consecutive decoder layers that one call computes.

The layers keep their places in the model: the first one that is called computes itself and all
that follow up to the next one with a hook (an Engram memory reads the hidden state there); those
hand the state on when their turn comes. So a step costs a few calls instead of one per layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from server.engine.aligned import aligned_bytes
from server.engine.attention_batch import AttentionBatch
from server.engine.fuse.fused_layer import FusedLayer
from server.engine.kv_cache import KVCache
from server.engine.native.attention import TILE, attention_scratch_bytes
from server.engine.native.choice import FormatChoice
from server.engine.native.formats import Bytes, Format, aligned
from server.engine.native.layer_weights import LayerWeights
from server.engine.native.panels import PANEL_BYTES
from server.engine.native.program import LAYERS
from server.engine.native.records import LAYER, SHAPE
from server.engine.native.step import NativeStep
from server.engine.native.team import Team

_QUERIES_PER_UNIT = 48
_PADDING_ROWS = 8  # kernels read whole groups of rows


class LayerStack:
    """The native layers of one model.

    Args:
        team: computes them.
        choice: formats of their weights.

    Attributes:
        choice: as given; may be replaced by one with the same formats.
    """

    def __init__(self, team: Team, choice: FormatChoice) -> None:
        self._team = team
        self.choice = choice
        self._modules: list[nn.Module] = []
        self._weights: list[LayerWeights] = []
        self._tables: dict[Format, npt.NDArray[np.void]] = {}
        self._shape = aligned_bytes(SHAPE.itemsize).view(SHAPE)
        self._scratch: dict[str, Bytes] = {}
        self._num_rows = 0
        self._cache: KVCache | None = None

    def add(self, module: nn.Module, fused: FusedLayer) -> int:
        """Take a layer's weights over; returns its place in the stack."""
        self._modules.append(module)
        self._weights.append(LayerWeights(fused, self.choice.formats))
        self._cache = None  # its tables are written with the next step
        if len(self._weights) == 1:
            self._describe(fused)
        return len(self._weights) - 1

    @property
    def nbytes(self) -> int:
        """Memory of all weights, in all formats."""
        return sum(weights.nbytes for weights in self._weights)

    @property
    def weights(self) -> list[LayerWeights]:
        """What the layers multiply by, for measurements."""
        return self._weights

    def step_of(self, batch: AttentionBatch) -> NativeStep:
        """The batch as the kernels read it; made when the step's first layer asks."""
        if batch.native is None:
            batch.native = NativeStep(batch, self._tile_tokens)
        step: NativeStep = batch.native
        return step

    def run(
        self,
        first: int,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        step: NativeStep,
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Compute the layers from ``first`` to the next hook that has something to do.

        Args:
            first: a layer's place.
            hidden: [1, tokens, hidden]; the answer has the same shape.
            rotary: cosines and sines [1, tokens, rotated dims].
            step: the batch.
            kwargs: what else the layers are called with, for their hooks.
        """
        self._bind(step.batch.cache)
        num_rows = hidden.shape[1]
        self._make_room(num_rows)
        last = self._reach(first, kwargs)
        out = hidden.contiguous().clone()
        cos, sin = (each.to(torch.bfloat16).contiguous() for each in rotary)
        self._shape["rotary_dim"] = cos.shape[-1]
        table = self._tables[self.choice.of(num_rows)]
        self._team.run(
            kind=LAYERS,
            first_layer=first,
            num_layers=last - first,
            layers=table.ctypes.data,
            shape=self._shape.ctypes.data,
            num_rows=num_rows,
            hidden=out.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            spans=step.spans.ctypes.data,
            units=step.units.ctypes.data,
            num_units=len(step.units),
            slots=step.slots.ctypes.data,
            **{name: data.ctypes.data for name, data in self._scratch.items()},
        )
        step.next_layer = last
        return out

    def _reach(self, first: int, kwargs: dict[str, Any]) -> int:
        """The place behind the last layer that may be computed together with ``first``."""
        last = first + 1
        while (
            last < len(self._modules)
            and not self._modules[last - 1]._forward_hooks
            and _is_idle(self._modules[last]._forward_pre_hooks.values(), kwargs)
        ):
            last += 1
        return last

    def _describe(self, fused: FusedLayer) -> None:
        shape = self._shape
        shape["hidden"] = fused.output.out_features
        shape["num_heads"], shape["num_kv_heads"] = fused.num_heads, fused.num_kv_heads
        shape["head_dim"] = fused.head_dim
        shape["intermediate"] = fused.down.in_features
        group = fused.num_heads // fused.num_kv_heads
        self._tile_tokens = max(1, _QUERIES_PER_UNIT // group)
        queries = self._tile_tokens * group
        attention = attention_scratch_bytes(queries, fused.head_dim)
        self._team.reserve(max(PANEL_BYTES, attention))

    def _bind(self, cache: KVCache) -> None:
        """Write the layers' tables for a KV cache: an engine has its own."""
        if cache is self._cache:
            return
        for form in self.choice.formats:
            table = aligned(np.zeros(len(self._weights), dtype=LAYER)).view(LAYER)
            for record, weights in zip(table, self._weights, strict=True):
                weights.describe(record, form, cache)
            self._tables[form] = table
        self._shape["block_tiles"] = cache.block_size // TILE
        self._shape["block_bytes"] = cache.keys[0][0].nbytes
        self._cache = cache

    def _make_room(self, num_rows: int) -> None:
        """Scratch for so many rows; it only grows."""
        if num_rows <= self._num_rows:
            return
        self._num_rows = max(16, 1 << (num_rows - 1).bit_length())
        shape = {name: int(self._shape[name][0]) for name in SHAPE.names or ()}
        heads, kv_heads, dim = shape["num_heads"], shape["num_kv_heads"], shape["head_dim"]
        row_bytes = {
            "normed": 2 * shape["hidden"],
            "qkv": 4 * (heads + 2 * kv_heads) * dim,
            "query": 2 * heads * dim,
            "context": 2 * heads * dim,
            "residual": 4 * shape["hidden"],
            "activated": 2 * shape["intermediate"],
        }
        rows = self._num_rows + _PADDING_ROWS
        self._scratch = {name: aligned_bytes(rows * size) for name, size in row_bytes.items()}


def _is_idle(hooks: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether no hook would do anything; one that does not say so might."""
    return all(hasattr(hook, "is_idle") and hook.is_idle(kwargs) for hook in hooks)
