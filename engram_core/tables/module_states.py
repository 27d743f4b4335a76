"""Foreign names of a gated module's weights, turned into those of `EngramModule.state_dict`.

Knows names and shapes; reads no files and checks nothing (a missing name is a KeyError).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

State = Mapping[str, torch.Tensor]


def demo_module_state(state: State, num_gates: int) -> dict[str, torch.Tensor]:
    """From the January 2026 demo's module: ``key_projs.g``, ``value_proj``, ``norm1.g``, ..."""
    projections = [*(f"key_projs.{g}" for g in range(num_gates)), "value_proj"]
    return {
        "kv_weight": torch.cat([state[f"{name}.weight"] for name in projections]),
        "kv_bias": torch.cat([state[f"{name}.bias"] for name in projections]),
        "key_norm": _stacked(state, "norm1", num_gates),
        "query_norm": _stacked(state, "norm2", num_gates),
        **_convolution(state, num_gates),
    }


def peft_module_state(state: State, num_gates: int) -> dict[str, torch.Tensor]:
    """From an engram-peft layer: ``gating.w_k.g``, ``gating.w_v``, ``gating.norm_k.g``, ..."""
    projections = [*(f"gating.w_k.{g}" for g in range(num_gates)), "gating.w_v"]
    return {
        "kv_weight": torch.cat([state[f"{name}.weight"] for name in projections]),
        "key_norm": _stacked(state, "gating.norm_k", num_gates),
        "query_norm": _stacked(state, "gating.norm_h", num_gates),
        **_convolution(state, num_gates),
    }


def v41_module_state(state: State) -> dict[str, torch.Tensor]:
    """From DeepSeek-V4.1's dense weights: ``wkv.weight``, ``q_weight`` and ``k_weight``."""
    return {
        "kv_weight": state["wkv.weight"],
        "query_norm": state["q_weight"],
        "key_norm": state["k_weight"],
    }


def _convolution(state: State, num_gates: int) -> dict[str, torch.Tensor]:
    return {
        "conv_weight": state["short_conv.conv.weight"].squeeze(1),  # [gates*D, 1, K] -> [., K]
        "conv_norm": _stacked(state, "short_conv.norms", num_gates),
    }


def _stacked(state: State, name: str, num_gates: int) -> torch.Tensor:
    """The weights of one norm per gate: ``[gates, D]``."""
    return torch.stack([state[f"{name}.{g}.weight"] for g in range(num_gates)])
