"""Packs the linear layers of a loaded model, in place."""

from __future__ import annotations

from collections import Counter

from torch import nn

from engram_core.module import EngramModule
from server.engine.linear.packed import PackedLinear, can_pack


def projection_of(module: EngramModule) -> nn.Linear:
    """The product with a memory's keys and values, as a linear layer over the same weight."""
    rows, width = module.kv_weight.shape
    linear = nn.Linear(width, rows, bias=module.kv_bias is not None, device="meta")
    linear.weight = module.kv_weight
    linear.register_parameter("bias", module.kv_bias)
    return linear


def pack_projection(module: EngramModule) -> None:
    """Let a memory's module multiply with a packed copy of its weight, where that is faster."""
    linear = projection_of(module)
    if can_pack(linear):
        module.projection = PackedLinear(linear)


def pack_linears(model: nn.Module) -> int:
    """Replace every linear layer that can be packed; returns how many were.

    A weight that another module uses too (a head tied to the embedding) stays as it is: packing
    it would be a second copy. Take the backbone's fingerprint before.
    """
    users = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )
    packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            # a subclass may do more than multiply
            if type(child) is nn.Linear and users[id(child.weight)] == 1 and can_pack(child):
                setattr(parent, name, PackedLinear(child))
                packed += 1
    return packed
