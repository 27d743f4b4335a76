"""StaticStep: a decode step whose inputs lie in tensors that never move, for captured graphs.

A graph reads the same memory in every replay and runs no Python. So before a replay `fill` waits
for the rows of a step and copies them, the switches and the convolution histories into fixed
tensors, and after it `finish` gives the step what the modules left. Knows no graphs.
"""

from __future__ import annotations

import torch

from engram_core.conv_state import ConvState
from engram_core.step import EngramStep
from engram_core.version import MemoryVersion


class StaticStep:
    """The memory of up to `size` sequences with one token each (see `engram_core.splice.Step`).

    All places are silent at first, and those that `fill` leaves over always.

    Args:
        version: the memory that every filled step reads.
        size: sequences.
        device: where compute runs.
    """

    def __init__(self, version: MemoryVersion, size: int, device: torch.device) -> None:
        config = version.config
        self._version, self._size = version, size
        self._live = torch.zeros(size, dtype=torch.bool, device=device)
        self._gate_scales = torch.ones(size, device=device)
        self._rows = {  # a row's value is bfloat16 by definition: nothing is lost
            layer: torch.zeros(size, config.memory_dim, dtype=torch.bfloat16, device=device)
            for layer in version.layer_ids
        }
        self._histories = {
            layer: torch.zeros(size, config.conv_history, config.conv_channels, device=device)
            for layer in (version.layer_ids if config.conv_history else ())
        }
        self._states = {
            layer: [_StaticState(history) for history in histories]
            for layer, histories in self._histories.items()
        }
        self._switches: tuple[list[bool], list[float]] = ([False] * size, [1.0] * size)
        self._gates: dict[int, torch.Tensor] = {}

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """What every `fill` writes."""
        return (*self._rows.values(), *self._histories.values())

    def fill(self, step: EngramStep) -> None:
        """Take over a step's inputs, waiting for the rows of all its layers.

        Raises:
            TierError: a ticket of the step failed.
        """
        rows = {layer: step.embeddings(layer) for layer in self._rows}
        padding = self._size - len(step.spans)
        self._switch(
            [*(span is not None for span in step.spans), *[False] * padding],
            [*step.gate_scales, *[1.0] * padding],
        )
        for layer, found in rows.items():
            self._rows[layer][: len(found)].copy_(found)
        for layer, histories in self._histories.items():
            states = step.states(layer)
            unknown = torch.zeros_like(histories[0])
            parts = [unknown if state is None else state.history for state in states]
            torch.stack([*parts, *[unknown] * padding], out=histories)

    def _switch(self, live: list[bool], gate_scales: list[float]) -> None:
        if (live, gate_scales) != self._switches:  # they seldom change from step to step
            self._live.copy_(torch.tensor(live))
            self._gate_scales.copy_(torch.tensor(gate_scales))
            self._switches = (live, gate_scales)

    def apply(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Add the memory of `layer` to `hidden` ``[size, G, D]``."""
        # always the whole of it: which positions contribute is not known on the host
        delta, self._gates[layer] = self._version.modules[layer].contribution(
            hidden,
            self._rows[layer],
            lengths=[1] * self._size,
            conv_states=self._states.get(layer),
            live=self._live,
        )
        updated = (hidden.float() + delta * self._gate_scales[:, None, None]).to(hidden.dtype)
        return torch.where(self._live[:, None, None], updated, hidden)

    def is_silent(self, layer: int) -> bool:
        """Never: a graph computes the whole of every layer."""
        return False

    def finish(self, step: EngramStep) -> None:
        """Give `step` its gates, and its sequences' convolution states their newest inputs."""
        for layer, gates in self._gates.items():
            step.gates[layer] = gates[: step.num_tokens]
        for layer, static in self._states.items():
            for state, slot in zip(step.states(layer), static, strict=False):
                if state is not None:
                    state.append(slot.appended)


class _StaticState(ConvState):
    """A place of the fixed histories, which remembers what was appended instead of moving on."""

    def __init__(self, history: torch.Tensor) -> None:
        super().__init__(len(history), history.shape[1], device=history.device)
        self._fixed = self.appended = history

    @property
    def history(self) -> torch.Tensor:
        """The vectors before the step's token: ``[(K-1)*N, G*D]``."""
        return self._fixed

    def append(self, u: torch.Tensor) -> None:
        """Remember the token's input ``[1, G*D]``."""
        self.appended = u
