"""FusedGate: what `EngramModule` does behind its projection, in a few compiled calls.

On a CPU every torch operation on ``[tokens, G, D]`` walks through all of it; the kernels walk once
for the gates and once for the result. bfloat16 in and out, float32 between. Decides when it can;
the module's own operations are the definition that it is held to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from engram_core import compiled
from engram_core.config import EngramConfig
from engram_core.conv_state import ConvState
from engram_core.errors import ConfigError

Words = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]

CONV_NORM_EPS = 1e-5
_SHARED_VALUES = 1 << 20  # below it a second thread costs more than it does


class GateWeights(Protocol):
    """The weights that it reads, as `EngramModule` names them."""

    config: EngramConfig
    query_norm: torch.nn.Parameter
    key_norm: torch.nn.Parameter
    conv_weight: torch.nn.Parameter | None
    conv_norm: torch.nn.Parameter | None


class FusedGate:
    """The kernels with one module's weights, made ready when those have changed.

    Args:
        weights: of the module.
    """

    def __init__(self, weights: GateWeights) -> None:
        self._weights = weights
        self._norms = _Kept(lambda q, k: (q * k).reshape(-1), "query_norm", "key_norm")
        self._conv_norms = _Kept(lambda norm: norm.reshape(-1), "conv_norm")
        self._taps = _Kept(lambda weight: weight.T, "conv_weight")

    def can(self, hidden: torch.Tensor, kv_dtype: torch.dtype) -> bool:
        """Whether it computes this: bfloat16 on the CPU, serving, one gate for each stream."""
        return (
            compiled.kernels() is not None
            and self._weights.config.num_branches == 1
            and hidden.dtype is torch.bfloat16
            and kv_dtype is torch.bfloat16
            and hidden.device.type == "cpu"
            and not torch.is_grad_enabled()
        )

    def __call__(
        self,
        hidden: torch.Tensor,
        kv: torch.Tensor,
        mask: torch.Tensor | None,
        scale: torch.Tensor | None,
        lengths: Sequence[int],
        states: Sequence[ConvState | None] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The new hidden state ``[tokens, G, D]`` and the gates ``[tokens, G]``.

        Args:
            hidden: ``[tokens, G, D]``.
            kv: ``[tokens, (G+1)*D]``, keys first.
            mask: bool ``[tokens]``, False closes the gates; None closes none.
            scale: of what is added, ``[tokens]``; None for 1.
            lengths: tokens of each packed sequence.
            states: the convolution's state of each, which is advanced; or None.
        """
        kernels = compiled.kernels()
        if kernels is None:
            raise ConfigError("the compiled kernels were never loaded")
        config, tokens = self._weights.config, len(hidden)
        rows, keys = words(hidden.reshape(tokens, -1)), words(kv)
        out = np.empty_like(rows)
        gates = np.empty((tokens, config.num_streams), dtype=np.float32)
        scales = np.ones(tokens, np.float32) if scale is None else scale.numpy()
        share = _shares(tokens, rows.size)
        is_v41, norms = config.form == "v41", self._norms.of(self._weights)
        share(lambda s: kernels.open_gates(rows, keys, norms, config.norm_eps, is_v41, s, gates))
        if mask is not None:
            gates *= mask.numpy()[:, None]
        if self._weights.conv_weight is None:
            share(lambda s: kernels.add_values(rows, keys, gates, scales, s, out))
        else:
            self._convolve(kernels, (rows, keys, gates, scales, out), share, lengths, states)
        return torch.from_numpy(out).view(torch.bfloat16).view_as(hidden), torch.from_numpy(gates)

    def _convolve(
        self,
        kernels: compiled.Kernels,
        arrays: tuple[Words, Words, Floats, Floats, Words],
        share: Callable[[Callable[[Any], None]], None],
        lengths: Sequence[int],
        states: Sequence[ConvState | None] | None,
    ) -> None:
        rows, keys, gates, scales, out = arrays
        config = self._weights.config
        inputs = np.empty_like(rows)
        norms, taps = self._conv_norms.of(self._weights), self._taps.of(self._weights)
        share(lambda s: kernels.conv_inputs(keys, gates, norms, CONV_NORM_EPS, s, inputs))
        history = _history(config, lengths, states)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        share(
            lambda s: kernels.add_convolved(
                rows, keys, gates, inputs, history, starts, taps, config.dilation, scales, s, out
            )
        )
        _append(inputs, lengths, states)


def words(tensor: torch.Tensor) -> Words:
    """A bfloat16 host tensor as words; copied only when it is not contiguous."""
    found: Words = tensor.contiguous().view(torch.uint16).numpy()
    return found


def _history(
    config: EngramConfig, lengths: Sequence[int], states: Sequence[ConvState | None] | None
) -> Words:
    """Each sequence's earlier inputs, zeros before its start: ``[S*H, G*D]``."""
    found = np.zeros((len(lengths), config.conv_history, config.conv_channels), np.uint16)
    for index, state in enumerate(states or ()):
        if state is not None:
            found[index] = words(state.history.to(torch.bfloat16))
    return found.reshape(-1, config.conv_channels)


def _append(
    inputs: Words, lengths: Sequence[int], states: Sequence[ConvState | None] | None
) -> None:
    if states is None:
        return
    parts = torch.split(torch.from_numpy(inputs).view(torch.bfloat16), list(lengths))
    for state, part in zip(states, parts, strict=True):
        if state is not None:
            state.append(part)


def _shares(tokens: int, num_values: int) -> Callable[[Callable[[Any], None]], None]:
    """Runs a kernel over all tokens, on as many threads as torch has if there are enough."""
    threads = torch.get_num_threads() if num_values >= _SHARED_VALUES else 1
    edges = np.linspace(0, tokens, min(threads, tokens) + 1).astype(np.int64)
    spans = [edges[i : i + 2].copy() for i in range(len(edges) - 1)]
    if len(spans) == 1:
        return lambda kernel: kernel(spans[0])

    def share(kernel: Callable[[Any], None]) -> None:
        others = [_pool(len(spans) - 1).submit(kernel, span) for span in spans[1:]]
        kernel(spans[0])
        for other in others:
            other.result()

    return share


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "engram-gate")


class _Kept:
    """An array made of parameters, made again when one of them has changed."""

    def __init__(self, make: Callable[..., torch.Tensor], *names: str) -> None:
        self._make, self._names = make, names
        self._made_of: tuple[int, ...] = ()
        self._array: Floats = np.empty(0, dtype=np.float32)

    def of(self, weights: GateWeights) -> Floats:
        """float32, contiguous."""
        parameters = [getattr(weights, name) for name in self._names]
        if any(parameter.is_inference() for parameter in parameters):
            return self._build(parameters)  # these do not count their changes
        now = tuple(n for p in parameters for n in (p.data_ptr(), p._version))
        if now != self._made_of:
            self._array, self._made_of = self._build(parameters), now
        return self._array

    def _build(self, parameters: Sequence[torch.Tensor]) -> Floats:
        made = self._make(*(parameter.detach().float() for parameter in parameters))
        array: Floats = np.ascontiguousarray(made.numpy())
        return array
