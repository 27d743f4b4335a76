"""Arm 0's own way: an Engram layer written as a model's code would write it first.

Every branch has its own projections and norms, the convolution is torch's. It computes what
`EngramModule` computes (engram-spec section 5), so that arms differ in time alone. Sources of the
form: arXiv 2601.07372 section 2, the public demo.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from engram_core.fused_gate import CONV_NORM_EPS
from engram_core.module import GATE_FLOOR, EngramModule


class DemoEngram(nn.Module):
    """The module with a projection, two norms and a gate per branch, and torch's convolution.

    Args:
        module: whose weights it takes.
    """

    def __init__(self, module: EngramModule) -> None:
        super().__init__()
        config = self.config = module.config
        branches, dim = config.num_gates, config.hidden_size
        state = module.state_dict()
        weights = state["kv_weight"].split(dim)
        biases = state["kv_bias"].split(dim)
        projections = [_linear(w, b) for w, b in zip(weights, biases, strict=True)]
        self.keys, self.value = nn.ModuleList(projections[:branches]), projections[branches]
        self.key_norms = nn.ModuleList(_norm(w, config.norm_eps) for w in state["key_norm"])
        self.query_norms = nn.ModuleList(_norm(w, config.norm_eps) for w in state["query_norm"])
        self.conv_norms = nn.ModuleList(_norm(w, CONV_NORM_EPS) for w in state["conv_norm"])
        channels = branches * dim
        self.conv = nn.Conv1d(
            channels,
            channels,
            config.kernel_size,
            padding=config.conv_history,
            dilation=config.dilation,
            groups=channels,
            bias=False,
            dtype=state["conv_weight"].dtype,
        )
        self.conv.weight = nn.Parameter(state["conv_weight"][:, None], requires_grad=False)

    def forward(self, hidden: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """``[tokens, G, D]`` and rows ``[tokens, F]`` to ``[tokens, G, D]``."""
        gates = torch.stack(
            [self._gate(g, hidden[:, g], embeddings) for g in range(self.config.num_gates)], dim=1
        )
        gated = gates * self.value(embeddings)[:, None]
        updated: torch.Tensor = hidden + gated + self._convolve(gated)
        return updated

    def _gate(self, branch: int, query: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        key = self.key_norms[branch](self.keys[branch](embeddings))
        dot = (key * self.query_norms[branch](query)).sum(-1) / math.sqrt(self.config.hidden_size)
        gate: torch.Tensor = (dot.abs().clamp_min(GATE_FLOOR).sqrt() * dot.sign()).sigmoid()
        return gate[:, None]

    def _convolve(self, gated: torch.Tensor) -> torch.Tensor:
        normed = [norm(gated[:, g]) for g, norm in enumerate(self.conv_norms)]
        channels = torch.cat(normed, dim=-1).T[None]  # [1, G*D, tokens]
        mixed: torch.Tensor = self.conv(channels)[..., : len(gated)]
        return F.silu(mixed)[0].T.reshape(gated.shape)


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    linear.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return linear


def _norm(weight: torch.Tensor, eps: float) -> nn.RMSNorm:
    norm = nn.RMSNorm(weight.numel(), eps=eps, device="meta")
    norm.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    return norm
