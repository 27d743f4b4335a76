"""EngramStep: what one forward carries to its Engram layers.

Puts the rows of several tickets into the packed order of the step's tokens, silences sequences
without memory, calls the layer's module and keeps what was measured. Knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from engram_core.conv_state import ConvState
from engram_core.errors import ConfigError, EngramError
from engram_core.module import EngramOutput
from engram_core.stats import Phase, WaitStats
from engram_core.ticket import Ticket
from engram_core.version import MemoryVersion


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows ``start`` to ``stop`` (exclusive) of a ticket: one sequence's tokens of this step."""

    ticket: Ticket
    start: int
    stop: int


@dataclass(slots=True)
class _Run:
    """Neighbouring tokens that come from one place: a ticket's slice, or zeros."""

    ticket: Ticket | None
    start: int
    stop: int


class EngramStep:
    """One forward over several packed sequences.

    Args:
        version: the memory that all tickets read.
        lengths: tokens of each sequence in this step; they add up to ``tokens``.
        spans: each sequence's rows; None switches the memory off for it: it contributes nothing.
        gate_scales: each sequence's factor on the memory's contribution.
        conv_states: each sequence's convolution state per layer (demo form), or None.
        isolate_failures: a ticket that fails silences its own sequences, which then appear in
            `failures`, instead of failing the whole forward. The caller must discard what the
            forward computed for them.

    Attributes:
        version, spans, gate_scales: as given; a failed ticket's spans become None.
        waits: how long compute waited, per layer and phase, zeros included.
        gates: per layer ``[tokens, G]``, 0 where a position does not contribute.
        failures: index of a sequence -> why its rows did not come.
    """

    def __init__(
        self,
        version: MemoryVersion,
        lengths: Sequence[int],
        spans: Sequence[RowSpan | None],
        gate_scales: Sequence[float] | None = None,
        conv_states: Sequence[Mapping[int, ConvState | None] | None] | None = None,
        *,
        isolate_failures: bool = False,
    ) -> None:
        count = len(lengths)
        self.version = version
        self._lengths = list(lengths)
        self.spans = list(spans)
        self.gate_scales = [1.0] * count if gate_scales is None else list(gate_scales)
        self._conv_states = [None] * count if conv_states is None else list(conv_states)
        self._isolate_failures = isolate_failures
        self._check()
        self._runs = _merge(self._lengths, self.spans)
        self.num_tokens = sum(self._lengths)
        self.waits: list[WaitStats] = []
        self.gates: dict[int, torch.Tensor] = {}
        self.failures: dict[int, EngramError] = {}

    def _check(self) -> None:
        given = (len(self.spans), len(self.gate_scales), len(self._conv_states))
        if set(given) != {len(self._lengths)}:
            raise ConfigError(
                f"spans, gate_scales and conv_states have {given} entries; "
                f"accepted: {len(self._lengths)}, one per sequence"
            )
        for length, span in zip(self._lengths, self.spans, strict=True):
            if span is not None:
                _check_span(span, length, self.version.id)

    def states(self, layer: int) -> list[ConvState | None]:
        """Each sequence's convolution state of `layer`."""
        return [states.get(layer) if states else None for states in self._conv_states]

    def embeddings(self, layer: int) -> torch.Tensor:
        """The step's rows ``[tokens, F]`` in packed order, zeros for silent sequences.

        Waits for the tickets and records the wait.

        Raises:
            TierError: a ticket failed (unless failures are isolated).
        """
        rows = self._take_rows(layer)
        parts = [
            rows[run.ticket][run.start : run.stop] if run.ticket is not None else run
            for run in self._runs
        ]
        like = next((part for part in parts if isinstance(part, torch.Tensor)), None)
        if like is None:
            like = torch.zeros(0, self.version.config.memory_dim, dtype=torch.bfloat16)
        tensors = [
            part if isinstance(part, torch.Tensor) else _zero_rows(like, part) for part in parts
        ]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def _take_rows(self, layer: int) -> dict[Ticket, torch.Tensor]:
        """The rows of each ticket; waits are summed per phase."""
        rows: dict[Ticket, torch.Tensor] = {}
        waits: dict[Phase, float] = {}
        for ticket in _tickets(self._runs):
            try:
                rows[ticket], wait_s = ticket.rows(layer)
            except EngramError as error:
                if not self._isolate_failures:
                    raise
                self._silence(ticket, error)
            else:
                waits[ticket.phase] = waits.get(ticket.phase, 0.0) + wait_s
        self.waits += [WaitStats(layer, phase, wait_s) for phase, wait_s in waits.items()]
        return rows

    def _silence(self, ticket: Ticket, error: EngramError) -> None:
        for index, span in enumerate(self.spans):
            if span is not None and span.ticket is ticket:
                self.spans[index] = None
                self.failures[index] = error
        self._runs = _merge(self._lengths, self.spans)

    def apply(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Add the memory of `layer` to `hidden` ``[tokens, G, D]``, and keep the gates.

        Raises:
            TierError: a ticket failed (unless failures are isolated).
            ConfigError: `hidden` has another number of tokens.
        """
        if len(hidden) != self.num_tokens:
            raise ConfigError(f"hidden has {len(hidden)} tokens; accepted: {self.num_tokens}")
        embeddings = self.embeddings(layer)
        if all(span is None for span in self.spans):
            self.gates[layer] = hidden.new_zeros(hidden.shape[:2], dtype=torch.float32)
            return hidden
        enabled = self._enabled(hidden.device)
        output: EngramOutput = self.version.modules[layer](
            hidden,
            embeddings,
            lengths=self._lengths,
            conv_states=self.states(layer),
            live=enabled,  # the module adds its hit rule
            gate_scale=self._gate_scale(hidden.device),
        )
        self.gates[layer] = output.gates
        if enabled is None:
            return output.hidden
        # adding zero would still turn -0.0 into 0.0: a silent sequence keeps its very bits
        return torch.where(enabled[:, None, None], output.hidden, hidden)

    def _enabled(self, device: torch.device) -> torch.Tensor | None:
        """Bool ``[tokens]``, False for silent sequences; None when there are none."""
        if all(span is not None for span in self.spans):
            return None
        return self._per_token([span is not None for span in self.spans], device)

    def _gate_scale(self, device: torch.device) -> torch.Tensor | None:
        if all(scale == 1.0 for scale in self.gate_scales):
            return None
        return self._per_token(self.gate_scales, device)

    def _per_token(self, values: Sequence[float], device: torch.device) -> torch.Tensor:
        per_sequence = torch.tensor(values)
        return per_sequence.repeat_interleave(torch.tensor(self._lengths)).to(device)


def _merge(lengths: Sequence[int], spans: Sequence[RowSpan | None]) -> list[_Run]:
    """Join neighbours, so that a ticket which covers the whole step is one slice."""
    runs: list[_Run] = []
    for length, span in zip(lengths, spans, strict=True):
        ticket = span.ticket if span is not None else None
        start = span.start if span is not None else 0
        last = runs[-1] if runs else None
        if last is not None and last.ticket is ticket and (ticket is None or last.stop == start):
            last.stop += length
        else:
            runs.append(_Run(ticket, start, start + length))
    return runs


def _tickets(runs: Sequence[_Run]) -> Iterator[Ticket]:
    """Each ticket once, in packed order."""
    yield from dict.fromkeys(run.ticket for run in runs if run.ticket is not None)


def _zero_rows(like: torch.Tensor, run: _Run) -> torch.Tensor:
    return like.new_zeros(run.stop - run.start, like.shape[1])


def _check_span(span: RowSpan, length: int, version_id: str) -> None:
    covered = span.ticket.num_tokens
    if not 0 <= span.start <= span.stop <= covered or span.stop - span.start != length:
        raise ConfigError(
            f"span {span.start}:{span.stop} for {length} tokens; accepted: that many of the "
            f"ticket's {covered}"
        )
    if span.ticket.version_id != version_id:
        raise ConfigError(
            f"a ticket reads memory {span.ticket.version_id}; accepted: {version_id}, the step's"
        )
