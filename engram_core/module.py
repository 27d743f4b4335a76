"""EngramModule: rows of memory, gated by the hidden state, into the residual stream.

Both published forms share one fused projection (all keys, then the value) and one gate; the demo
form adds biases and a short causal convolution. Knows nothing about tables, hashing or prefetch.
(engram-spec section 5; arXiv 2601.07372 section 2; engram_demo_v1.py Engram; DeepSeek-V4.1.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from engram_core.config import EngramConfig
from engram_core.conv_state import ConvState
from engram_core.errors import ConfigError
from engram_core.fused_gate import CONV_NORM_EPS, FusedGate
from engram_core.tables.module_states import demo_module_state, v41_module_state

GATE_FLOOR = 1e-6  # keeps the square root's slope finite at zero


# Rows [tokens, F] to keys and value [tokens, (G+1)*D].
Projection = Callable[[torch.Tensor], torch.Tensor]


class EngramOutput(NamedTuple):
    """What `EngramModule` returns."""

    hidden: torch.Tensor  # [tokens, G, D], the residual included
    gates: torch.Tensor  # [tokens, A] float32, 0 where a position does not contribute


class EngramModule(nn.Module):
    """The gated memory of one layer.

    Args:
        config: the memory's configuration.
        layer: the decoder layer it belongs to.
        dtype: of the weights; the gate itself is always computed in float32.

    Attributes:
        projection: takes the place of the product with kv_weight where somebody has a faster one:
            rows ``[tokens, F]`` in the weights' dtype to ``[tokens, (A+1)*D]``, bias included.

    Parameters (D hidden size, G streams, A gates, F memory width, K kernel size; A is G unless
    every stream has several branches):
        kv_weight ``[(A+1)*D, F]`` keys first, kv_bias ``[(A+1)*D]`` (demo form),
        key_norm and query_norm ``[A, D]``, conv_weight ``[A*D, K]`` and conv_norm ``[A, D]``
        (demo form).
    """

    def __init__(
        self, config: EngramConfig, layer: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.projection: Projection | None = None
        self._fused = FusedGate(self)
        gates, dim = config.num_gates, config.hidden_size

        def parameter(*shape: int, fill: float = 0.0) -> nn.Parameter:
            return nn.Parameter(torch.full(shape, fill, dtype=dtype))

        self.kv_weight = parameter((gates + 1) * dim, config.memory_dim)
        self.key_norm = parameter(gates, dim, fill=1.0)
        self.query_norm = parameter(gates, dim, fill=1.0)
        has_bias = config.form == "demo" and config.use_bias
        self.kv_bias = parameter((gates + 1) * dim) if has_bias else None
        has_conv = config.form == "demo"
        self.conv_weight = parameter(gates * dim, config.kernel_size) if has_conv else None
        self.conv_norm = parameter(gates, dim, fill=1.0) if has_conv else None

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.kv_weight.device

    def forward(
        self,
        hidden: torch.Tensor,
        embeddings: torch.Tensor,
        *,
        lengths: Sequence[int] | None = None,
        conv_states: Sequence[ConvState | None] | None = None,
        live: torch.Tensor | None = None,
        gate_scale: torch.Tensor | None = None,
        are_hits: bool = False,
    ) -> EngramOutput:
        """Add the memory's contribution to the hidden state.

        Args:
            hidden: ``[tokens, G, D]``, sequences packed one behind the other.
            embeddings: ``[tokens, F]``, the concatenated rows of each token.
            lengths: tokens per packed sequence; one sequence when left out.
            conv_states: the convolution's state per sequence (demo form); each is advanced.
                Without one a sequence starts from zeros.
            live: bool ``[tokens]``; False contributes exactly nothing.
            gate_scale: ``[tokens]``, multiplies the contribution.
            are_hits: True says that the hit rule lets every token contribute; it is not asked.
        """
        if self._fused.can(hidden, self.kv_weight.dtype):
            return self._run_fused(
                hidden, embeddings, lengths, conv_states, live, gate_scale, are_hits
            )
        delta, gates = self.contribution(
            hidden,
            embeddings,
            lengths=lengths,
            conv_states=conv_states,
            live=live,
            are_hits=are_hits,
        )
        if gate_scale is not None:
            delta = delta * gate_scale[:, None, None]
        return EngramOutput((hidden.float() + delta).to(hidden.dtype), gates)

    def contribution(
        self,
        hidden: torch.Tensor,
        embeddings: torch.Tensor,
        *,
        lengths: Sequence[int] | None = None,
        conv_states: Sequence[ConvState | None] | None = None,
        live: torch.Tensor | None = None,
        are_hits: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `forward` adds: float32 ``[tokens, G, D]``, and the gates ``[tokens, A]``."""
        keys, value = self._project(embeddings)
        # every branch of a stream is gated by that stream
        gates = self._gate(hidden.expand(-1, self.config.num_gates, -1), keys)
        for mask in (live, None if are_hits else self.hits(embeddings)):
            if mask is not None:
                gates = gates * mask[:, None]
        gated = gates[:, :, None] * value[:, None, :].float()
        if self.conv_weight is not None:
            gated = gated + self._convolve(gated, lengths or [len(gated)], conv_states)
        return gated if self.config.num_branches == 1 else gated.sum(1, keepdim=True), gates

    def _run_fused(
        self,
        hidden: torch.Tensor,
        embeddings: torch.Tensor,
        lengths: Sequence[int] | None,
        conv_states: Sequence[ConvState | None] | None,
        live: torch.Tensor | None,
        gate_scale: torch.Tensor | None,
        are_hits: bool,
    ) -> EngramOutput:
        """`forward` behind the projection in compiled calls."""
        masks = [live, None if are_hits else self.hits(embeddings)]
        given = [mask for mask in masks if mask is not None]
        mask = given[0] & given[-1] if given else None
        kv = self._kv(embeddings)
        each = lengths or [len(hidden)]
        return EngramOutput(*self._fused(hidden, kv, mask, gate_scale, each, conv_states))

    def hits(self, embeddings: torch.Tensor) -> torch.Tensor | None:
        """Positions that the hit rule lets contribute: bool ``[tokens]``, None without a rule.

        `EngramConfig.min_hit_orders` lists the orders whose rows must all be non-zero: a row that
        was never written is zero, so a position whose longer n-grams are unknown stays silent even
        where a shorter one collides with a written row.
        """
        if not self.config.min_hit_orders:
            return None
        grid = (len(self.config.orders), self.config.num_heads, self.config.head_dim)
        written = (embeddings.view(-1, *grid) != 0).any(-1).all(-1)  # [tokens, orders]
        # one by one: a list as index would be copied from the host, which no graph can hold
        wanted = [written[:, self.config.orders.index(n)] for n in self.config.min_hit_orders]
        return torch.stack(wanted, -1).all(-1)

    def _project(self, embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys ``[tokens, A, D]`` and the shared value ``[tokens, D]`` in one product."""
        gates, dim = self.config.num_gates, self.config.hidden_size
        kv = self._kv(embeddings)
        return kv[:, : gates * dim].view(-1, gates, dim), kv[:, gates * dim :]

    def _kv(self, embeddings: torch.Tensor) -> torch.Tensor:
        rows = embeddings.to(self.kv_weight.dtype)
        if self.projection is not None:
            return self.projection(rows)
        return F.linear(rows, self.kv_weight, self.kv_bias)

    def _gate(self, hidden: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        eps = self.config.norm_eps
        states, keys = hidden.float(), keys.float()
        norms = self.query_norm.float() * self.key_norm.float()
        dot = (
            (states * norms * keys).sum(-1)
            * _inverse_rms(states, eps)
            * _inverse_rms(keys, eps)
            / math.sqrt(self.config.hidden_size)
        )
        magnitude = dot.abs().clamp_min(GATE_FLOOR).sqrt()
        # the two forms differ only at exactly zero: sign(0) is 0, copysign keeps the floor
        signed = magnitude.copysign(dot) if self.config.form == "v41" else dot.sign() * magnitude
        return signed.sigmoid()

    def _convolve(
        self,
        gated: torch.Tensor,
        lengths: Sequence[int],
        states: Sequence[ConvState | None] | None,
    ) -> torch.Tensor:
        """SiLU of the depthwise causal convolution, dilated: float32 ``[tokens, A, D]``."""
        weight, norm = self.conv_weight, self.conv_norm
        if weight is None or norm is None:
            raise ConfigError('a convolution needs form "demo"')
        u = gated * _inverse_rms(gated, CONV_NORM_EPS)[..., None] * norm.float()
        inputs = u.flatten(1).to(weight.dtype)  # [tokens, A*D]
        padded, starts = self._with_history(inputs, lengths, states)
        taps, dilation = self.config.kernel_size, self.config.dilation
        mixed = torch.zeros_like(inputs)
        for tap in range(taps):  # shifted multiply-adds: many times faster than conv1d on a CPU
            mixed += weight[:, tap] * padded[starts + tap * dilation]
        return F.silu(mixed.float()).view_as(gated)

    def _with_history(
        self,
        inputs: torch.Tensor,
        lengths: Sequence[int],
        states: Sequence[ConvState | None] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each sequence behind its history, and where in there each token's oldest tap is."""
        history = self.config.conv_history
        zeros = inputs.new_zeros(history, inputs.shape[1])
        pieces: list[torch.Tensor] = []
        for index, part in enumerate(torch.split(inputs, list(lengths))):
            state = states[index] if states is not None else None
            pieces += [zeros if state is None else state.history.to(inputs.dtype), part]
            if state is not None:
                state.append(part.detach())
        return torch.cat(pieces), _starts(lengths, history, inputs.device)

    def load_demo_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the weights of the demo's module (its state-dict keys; tables are left alone)."""
        self.load_state_dict(demo_module_state(state, self.config.num_gates))

    def load_v41_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take DeepSeek-V4.1's dense weights: ``wkv.weight``, ``q_weight`` and ``k_weight``."""
        self.load_state_dict(v41_module_state(state))


def _starts(lengths: Sequence[int], history: int, device: torch.device) -> torch.Tensor:
    """Where each token's oldest tap is when every sequence stands behind `history` vectors."""
    if all(length == 1 for length in lengths):  # a decode step; made on the device for graphs
        return torch.arange(len(lengths), device=device) * (history + 1)
    shifts = torch.repeat_interleave(
        torch.arange(len(lengths)) * history, torch.tensor(list(lengths))
    )
    return (torch.arange(len(shifts)) + shifts).to(device)


def _inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(x.float().square().mean(-1) + eps)
