"""NativeLayer: a decoder layer of Llama's kind on the CPU, computed by compiled kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from engram_core.errors import UnsupportedModelError
from server.engine.attention import AttentionStep, refuse_unknown, require_batch
from server.engine.attention_batch import AttentionBatch
from server.engine.fuse.fused_layer import FusedLayer
from server.engine.native.stack import LayerStack


class NativeLayer(nn.Module):
    """Takes the place of a fused layer; its weights lie in the stack that it belongs to."""

    def __init__(self, fused: FusedLayer, stack: LayerStack) -> None:
        super().__init__()
        self.layer = fused.layer
        self._stack = stack
        self._place = stack.add(self, fused)

    def forward(
        self,
        hidden_states: Tensor,  # [1, tokens, hidden]
        *,
        position_embeddings: tuple[Tensor, Tensor],
        engram_batch: AttentionStep | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Called like the layer it replaces; see `FusedLayer.forward`."""
        batch = require_batch("NativeLayer", self.layer, engram_batch)
        refuse_unknown("NativeLayer", self.layer, kwargs)
        if not isinstance(batch, AttentionBatch):
            raise UnsupportedModelError(
                f"layer {self.layer} is computed by native kernels, which need a KV cache"
            )
        step = self._stack.step_of(batch)
        if step.next_layer > self._place:  # computed together with a layer before this one
            return hidden_states
        return self._stack.run(self._place, hidden_states, position_embeddings, step, kwargs)
