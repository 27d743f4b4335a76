"""EngramStep: what one forward carries to its Engram layers.

Puts the rows of several tickets into the packed order of the step's tokens, silences sequences
without memory, calls the layer's module and keeps what was measured. Knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from engram_core.conv_state import ConvState
from engram_core.errors import ConfigError, EngramError
from engram_core.hits import Hits
from engram_core.module import EngramOutput
from engram_core.stats import Phase, WaitStats
from engram_core.ticket import Taken, Ticket
from engram_core.version import MemoryVersion

# Sees what compute gets: the index of a sequence, the layer, its rows [tokens, F] (None: none) and
# which of them are used [tokens] (None: all).
AuditRows = Callable[[int, int, torch.Tensor | None, npt.NDArray[np.bool_] | None], None]


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
        audit: called for every sequence that reads the memory when compute takes a layer's rows.

    Attributes:
        version, spans, gate_scales: as given; a failed ticket's spans become None.
        waits: how long compute waited, per layer and phase, zeros included.
        silent_layers: layers where no position contributed, as far as the host knows.
        gates: per layer ``[tokens, gates]``, 0 where a position does not contribute.
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
        audit: AuditRows | None = None,
    ) -> None:
        count = len(lengths)
        self.version = version
        self._lengths = list(lengths)
        self.spans = list(spans)
        self.gate_scales = [1.0] * count if gate_scales is None else list(gate_scales)
        self._conv_states = [None] * count if conv_states is None else list(conv_states)
        self._isolate_failures = isolate_failures
        self._audit = audit
        self._check()
        self._runs = _merge(self._lengths, self.spans)
        self.num_tokens = sum(self._lengths)
        self.waits: list[WaitStats] = []
        self.gates: dict[int, torch.Tensor] = {}
        self.silent_layers: set[int] = set()
        self._taken: dict[int, dict[Ticket, Taken]] = {}  # by `is_silent`, for `apply`
        self.failures: dict[int, EngramError] = {}

    def _check(self) -> None:
        given = (len(self.spans), len(self.gate_scales), len(self._conv_states))
        count = len(self._lengths)
        if given != (count, count, count):
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
        packed = self._pack(self._take(layer), layer)
        self._show(layer, packed)
        return self.version.served.widen(packed)

    def _pack(self, taken: Mapping[Ticket, Taken], layer: int) -> torch.Tensor:
        """The step's rows of the served orders ``[tokens, row_width]`` in packed order."""
        whole = self._whole()
        rows = {
            ticket: ticket.rows(layer)[0] if each.rows is None else each.rows
            for ticket, each in taken.items()
        }
        if whole is not None:
            return rows[whole]
        parts = [
            rows[run.ticket][run.start : run.stop] if run.ticket is not None else run
            for run in self._runs
        ]
        like = next((part for part in parts if isinstance(part, torch.Tensor)), None)
        if like is None:
            like = torch.zeros(0, self.version.served.row_width, dtype=torch.bfloat16)
        tensors = [
            part if isinstance(part, torch.Tensor) else _zero_rows(like, part) for part in parts
        ]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def _whole(self) -> Ticket | None:
        """The ticket whose rows are the step's, in order; None when there is none."""
        if len(self._runs) != 1:
            return None
        run = self._runs[0]
        is_all = run.ticket is not None and run.stop - run.start == run.ticket.num_tokens
        return run.ticket if is_all else None

    def _take(self, layer: int) -> dict[Ticket, Taken]:
        """What each ticket has; waits are summed per phase."""
        taken: dict[Ticket, Taken] = {}
        waits: dict[Phase, float] = {}
        for ticket in _tickets(self._runs):
            try:
                taken[ticket] = ticket.take(layer)
            except EngramError as error:
                if not self._isolate_failures:
                    raise
                self._silence(ticket, error)
            else:
                wait_s = taken[ticket].wait_s
                waits[ticket.phase] = waits.get(ticket.phase, 0.0) + wait_s
        self.waits += [WaitStats(layer, phase, wait_s) for phase, wait_s in waits.items()]
        return taken

    def _silence(self, ticket: Ticket, error: EngramError) -> None:
        for index, span in enumerate(self.spans):
            if span is not None and span.ticket is ticket:
                self.spans[index] = None
                self.failures[index] = error
        self._runs = _merge(self._lengths, self.spans)

    def is_silent(self, layer: int) -> bool:
        """Whether no position contributes in `layer`, as far as that is known without waiting.

        Then `apply` need not be called. Rows that no worker was asked for are looked up here.
        """
        if layer in self.silent_layers:
            return True
        if layer in self._taken or not all(each.can_tell(layer) for each in _tickets(self._runs)):
            return False
        try:
            taken = self._taken[layer] = self._take(layer)
        except EngramError:  # `apply` meets it again, where it belongs
            return False
        live = self._live(taken)
        has_memory = any(span is not None for span in self.spans)
        if (live is None and has_memory) or (live is not None and live.number):
            return False
        self._note_silent(layer)
        return True

    def _show(
        self, layer: int, rows: torch.Tensor | None, live: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Tell the audit what compute gets: packed ``[tokens, row_width]`` and ``[tokens]``."""
        if self._audit is None:
            return
        stop = 0
        for index, (length, span) in enumerate(zip(self._lengths, self.spans, strict=True)):
            part = slice(stop, stop := stop + length)
            if span is not None:
                own_rows = None if rows is None else rows[part]
                self._audit(index, layer, own_rows, None if live is None else live[part])

    def _note_silent(self, layer: int) -> None:
        self._show(layer, None)
        self.silent_layers.add(layer)
        num_gates, device = self.version.config.num_gates, self.version.modules[layer].device
        self.gates[layer] = _zero_gates(self.num_tokens, num_gates, device)

    def apply(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Add the memory of `layer` to `hidden` ``[tokens, G, D]``, and keep the gates.

        Raises:
            TierError: a ticket failed (unless failures are isolated).
            ConfigError: `hidden` has another number of tokens.
        """
        if len(hidden) != self.num_tokens:
            raise ConfigError(f"hidden has {len(hidden)} tokens; accepted: {self.num_tokens}")
        taken = self._taken.pop(layer, None)
        if taken is None:
            taken = self._take(layer)
        live = self._live(taken)
        if live is None and any(span is not None for span in self.spans):
            embeddings = self._pack(taken, layer)
            self._show(layer, embeddings)
            return self._apply_whole(layer, hidden, embeddings)
        if live is None or live.number == 0:
            self._note_silent(layer)
            return hidden
        embeddings = self._pack(taken, layer)
        if live.number == self.num_tokens:
            self._show(layer, embeddings)
            return self._apply_to_hits(layer, hidden, embeddings, None)
        self._show(layer, embeddings, live.mask)
        return self._apply_to_few(layer, hidden, embeddings, live.mask)

    def _live(self, taken: Mapping[Ticket, Taken]) -> Hits | None:
        """Tokens that contribute; None where only the whole computation can tell.

        A convolution carries earlier tokens into silent ones, so it always needs the whole.
        """
        config = self.version.config
        if config.conv_history:
            return None
        if config.min_hit_orders and any(each.hits is None for each in taken.values()):
            return None
        whole = self._whole()
        if whole is not None:
            hits = taken[whole].hits
            return Hits(np.empty(0, dtype=np.bool_), self.num_tokens) if hits is None else hits
        return self._packed_hits(taken)

    def _packed_hits(self, taken: Mapping[Ticket, Taken]) -> Hits:
        mask = np.zeros(self.num_tokens, dtype=np.bool_)
        row = 0
        for run in self._runs:
            stop = row + run.stop - run.start
            if run.ticket is not None:
                hits = taken[run.ticket].hits
                mask[row:stop] = True if hits is None else hits.mask[run.start : run.stop]
            row = stop
        return Hits(mask, int(np.count_nonzero(mask)))

    def _apply_to_few(
        self,
        layer: int,
        hidden: torch.Tensor,
        embeddings: torch.Tensor,
        mask: npt.NDArray[np.bool_],
    ) -> torch.Tensor:
        """Compute live tokens alone; the others keep their very bits."""
        rows = torch.from_numpy(np.flatnonzero(mask)).to(hidden.device)
        updated = self._apply_to_hits(layer, hidden[rows], embeddings[rows], rows)
        some = self.gates[layer]
        gates = some.new_zeros(self.num_tokens, some.shape[1])
        self.gates[layer] = gates.index_copy_(0, rows, some)
        return hidden.index_copy(0, rows, updated)

    def _apply_to_hits(
        self,
        layer: int,
        hidden: torch.Tensor,
        embeddings: torch.Tensor,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute these tokens, all of them live: the step's `rows`, or the whole step."""
        scale = self._gate_scale(hidden.device)
        output: EngramOutput = self.version.modules[layer](
            hidden,
            self.version.served.widen(embeddings),
            gate_scale=scale if scale is None or rows is None else scale[rows],
            are_hits=True,
        )
        self.gates[layer] = output.gates
        return output.hidden

    def _apply_whole(
        self, layer: int, hidden: torch.Tensor, embeddings: torch.Tensor
    ) -> torch.Tensor:
        """Compute every token and let the module find out which are live."""
        enabled = self._enabled(hidden.device)
        output: EngramOutput = self.version.modules[layer](
            hidden,
            self.version.served.widen(embeddings),
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
        if None not in self.spans:
            return None
        return self._per_token([span is not None for span in self.spans], device)

    def _gate_scale(self, device: torch.device) -> torch.Tensor | None:
        if self.gate_scales.count(1.0) == len(self.gate_scales):
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


@lru_cache(maxsize=64)
def _zero_gates(tokens: int, num_gates: int, device: torch.device) -> torch.Tensor:
    """What silent layers share; nobody writes to it."""
    with torch.inference_mode(False):
        return torch.zeros(tokens, num_gates, device=device)


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
