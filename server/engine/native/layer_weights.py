"""LayerWeights: everything that one native layer multiplies and adds, at addresses that stay."""

from __future__ import annotations

from typing import Any

import torch

from server.engine.fuse.fused_layer import FusedLayer
from server.engine.kv_cache import KVCache
from server.engine.native.formats import Format
from server.engine.native.weights import KernelWeight, address_of, float_vector, interleave

_MATRICES = ("qkv", "output", "gate_up", "down")


class LayerWeights:
    """Norms, and the four matrices in each of some formats.

    Attributes:
        matrices: format -> name -> weight.
    """

    def __init__(self, fused: FusedLayer, formats: tuple[Format, ...]) -> None:
        self._index = fused.layer
        self._options = fused.options
        self._head_dim = fused.head_dim
        norms = {
            "input_norm": fused.input_norm,
            "post_norm": fused.post_norm,
            "query_norm": fused.query_norm,
            "key_norm": fused.key_norm,
        }
        self._vectors = {
            name: None if norm is None else float_vector(norm.weight)
            for name, norm in norms.items()
        }
        self._eps = {name: 0.0 if norm is None else norm.eps for name, norm in norms.items()}
        gate, up = fused.gate_up.weight.detach().chunk(2)
        given = {
            "qkv": (fused.qkv.weight, fused.qkv.bias),
            "output": (fused.output.weight, fused.output.bias),
            "gate_up": (interleave(gate, up), None),
            "down": (fused.down.weight, None),
        }
        self.matrices: dict[Format, dict[str, KernelWeight]] = {
            form: {name: KernelWeight.of(*each, form) for name, each in given.items()}
            for form in formats
        }

    @property
    def nbytes(self) -> int:
        """Memory of the matrices in all formats."""
        return sum(w.nbytes for each in self.matrices.values() for w in each.values())

    def describe(self, record: Any, form: Format, cache: KVCache) -> None:
        """Fill a `records.LAYER`."""
        for name, vector in self._vectors.items():
            record[name] = address_of(vector)
        record["input_eps"], record["post_eps"] = self._eps["input_norm"], self._eps["post_norm"]
        record["head_eps"] = self._eps["query_norm"]
        scaling = self._options.scaling
        record["scaling"] = self._head_dim**-0.5 if scaling is None else scaling
        record["window"] = self._options.sliding_window or 0
        record["keys"] = cache.keys[self._index].data_ptr()
        record["values"] = cache.values[self._index].data_ptr()
        for name, weight in self.matrices[form].items():
            record[name] = weight.record[0]


def why_not_native(fused: FusedLayer, block_size: int) -> str | None:
    """Why the kernels do not compute a layer; None when they do."""
    reasons = {
        "its weights are not bfloat16": fused.qkv.weight.dtype != torch.bfloat16,
        "its weights are not on the CPU": fused.qkv.weight.device.type != "cpu",
        "its scores have a soft cap": fused.options.softcap is not None,
        "its activation is not SiLU": fused.activation != "silu",
        "its feed-forward has biases": any(
            each.bias is not None for each in (fused.gate_up, fused.down)
        ),
        "the size of its heads is no multiple of 16": fused.head_dim % 16 != 0,
        "its width is no multiple of 16": bool(
            fused.output.out_features % 16 or fused.down.in_features % 16
        ),
        f"a KV block of {block_size} tokens is no multiple of 16": block_size % 16 != 0,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
