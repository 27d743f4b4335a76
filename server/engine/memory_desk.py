"""MemoryDesk: the engine's side of the memory.

Asks for rows in advance (of a prompt when it is submitted, of the next step when its tokens are
known), keeps each ticket until its last holder lets go, and builds what a forward carries to its
Engram layers. Knows no scheduling and no numbers of the memory itself.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

from engram_core.conv_state import ConvState
from engram_core.prefetch import Prefetcher
from engram_core.row_audit import CommittedTokens
from engram_core.stats import AuditStats, LookupStats
from engram_core.step import AuditRows, EngramStep, RowSpan
from engram_core.store.fallback import ZERO_NAME
from engram_core.ticket import Ticket
from engram_core.version import MemoryVersion
from server.engine.batch import Batch, Span
from server.engine.memory_rows import MemoryRows
from server.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One forward's memory.

    Attributes:
        engram: what the model carries.
        spans: each sequence's rows, None where the memory is switched off.
        conv_states: convolution states that the forward advances; a failed forward is forgotten
            together with them, so they are copies until `commit`.
    """

    engram: EngramStep
    spans: tuple[RowSpan | None, ...]
    conv_states: tuple[Mapping[int, ConvState] | None, ...]

    def commit(self, batch: Batch) -> None:
        """Keep the advanced convolution states: the forward succeeded."""
        for span, states in zip(batch.spans, self.conv_states, strict=True):
            span.sequence.conv_states = states
            for layer, state in (states or {}).items():
                for length, snapshot in state.take_snapshots().items():
                    span.sequence.snapshots.setdefault(length, {})[layer] = snapshot


class MemoryDesk:
    """Tickets of all sequences. `ask_prompt` may be called from any thread.

    Args:
        prefetcher: None for a model without memory.
        snapshot_tokens: convolution states are noted after every so many tokens of a sequence,
            for others to go on from; None: never.
    """

    def __init__(self, prefetcher: Prefetcher | None, snapshot_tokens: int | None = None) -> None:
        self._prefetcher = prefetcher
        self._snapshot_tokens = snapshot_tokens
        self._holders: dict[Ticket, int] = {}
        self._lock = threading.Lock()
        self._left_over: list[LookupStats] = []

    @property
    def open_tickets(self) -> int:
        """Tickets that somebody holds."""
        return len(self._holders)

    def ask_prompt(self, sequence: Sequence, start: int = 0) -> None:
        """Start the lookups of everything that the sequence has to compute, from ``start`` on."""
        if sequence.uses_memory:
            self._ask_stretch(sequence, start)

    def ask_step(self, sequences: Many[Sequence]) -> None:
        """Start the lookups of the newest token of sequences of one version, on one ticket."""
        asking = [sequence for sequence in sequences if sequence.uses_memory]
        if not asking:
            return
        version = asking[0].version
        reach = version.config.max_order
        windows = version.hasher.step_windows([each.token_ids[-reach:] for each in asking])
        ticket = self._opened().submit_step(version, windows)
        with self._lock:
            self._holders[ticket] = len(asking)
        for row, sequence in enumerate(asking):
            self.release(sequence)
            sequence.memory_rows = MemoryRows(ticket, len(sequence.token_ids) - 1, 1, row)

    def release(self, sequence: Sequence) -> None:
        """Let go of the sequence's rows; a ticket that nobody holds is closed."""
        rows, sequence.memory_rows = sequence.memory_rows, None
        if rows is None:
            return
        with self._lock:
            left = self._holders.pop(rows.ticket) - 1
            is_last = left == 0
            if not is_last:
                self._holders[rows.ticket] = left
        if is_last:
            rows.ticket.release()
            self._left_over += rows.ticket.drain_stats()

    def drain_left_over(self) -> list[LookupStats]:
        """Lookups of closed tickets that no step reported."""
        left, self._left_over = self._left_over, []
        return left

    def build_step(self, batch: Batch) -> MemoryStep | None:
        """What the batch's forward carries; None when no sequence of it reads the memory."""
        if not any(span.sequence.uses_memory for span in batch.spans):
            return None
        spans = [self._row_span(span) for span in batch.spans]
        states = [self._advancing_states(span) for span in batch.spans]
        step = EngramStep(
            batch.version,
            [span.num_tokens for span in batch.spans],
            spans,
            [span.sequence.request.engram.gate_scale for span in batch.spans],
            states,
            audit=self._audit_of(batch, spans),
        )
        return MemoryStep(step, tuple(spans), tuple(states))

    def drain_audit(self) -> AuditStats | None:
        """Rows that were looked up again since the last call; None where none ever is."""
        audit = None if self._prefetcher is None else self._prefetcher.audit
        return None if audit is None else audit.drain()

    def _audit_of(self, batch: Batch, spans: Many[RowSpan | None]) -> AuditRows | None:
        """Compares with the sequences' own histories: no ticket has a say in what is right."""
        audit = self._opened().audit
        if audit is None:
            return None

        def check(index: int, layer: int, rows: Any, live: Any) -> None:
            span = batch.spans[index]
            own = CommittedTokens(span.sequence.id, span.sequence.token_ids, span.start, span.stop)
            rows_of = spans[index]
            if rows_of is not None and ZERO_NAME in rows_of.ticket.tiers(layer):
                audit.skip(batch.version, own)  # by policy no rows were given; they are counted
            else:
                audit.check(batch.version, layer, own, rows, live)

        return check

    def _advancing_states(self, span: Span) -> Mapping[int, ConvState] | None:
        states = _copied_states(span.sequence)
        every = self._snapshot_tokens
        if states is not None and every is not None:
            ends = range((span.start // every + 1) * every, span.stop + 1, every)
            for state in states.values():
                state.watch(ends)
        return states

    def _row_span(self, span: Span) -> RowSpan | None:
        sequence = span.sequence
        if not sequence.uses_memory:
            return None
        if not _covers(sequence.memory_rows, span):
            self.release(sequence)
            self._ask_stretch(sequence, span.start)
        rows: MemoryRows = sequence.memory_rows
        first = rows.row_of(span.start)
        return RowSpan(rows.ticket, first, first + span.num_tokens)

    def _ask_stretch(self, sequence: Sequence, start: int) -> None:
        version = sequence.version
        history = sequence.token_ids[max(0, start - version.config.max_order) : start]
        ticket = self._opened().submit_prompt(version, sequence.token_ids[start:], history)
        self._hold(sequence, MemoryRows(ticket, start, sequence.num_tokens - start))

    def _hold(self, sequence: Sequence, rows: MemoryRows) -> None:
        self.release(sequence)
        with self._lock:
            self._holders[rows.ticket] = self._holders.get(rows.ticket, 0) + 1
        sequence.memory_rows = rows

    def _opened(self) -> Prefetcher:
        if self._prefetcher is None:
            raise RuntimeError("a memory needs a prefetcher; the engine checks this at its start")
        return self._prefetcher


def _covers(rows: MemoryRows | None, span: Span) -> bool:
    return rows is not None and rows.covers(span.start, span.stop)


def _copied_states(sequence: Sequence) -> Mapping[int, ConvState] | None:
    """Copies of the sequence's convolution states, fresh ones at its start."""
    if not sequence.uses_memory or not sequence.version.config.conv_history:
        return None
    if sequence.conv_states is None:
        return _new_states(sequence.version)
    # a state never changes its tensors in place, so a shallow copy is a snapshot
    return {layer: copy.copy(state) for layer, state in sequence.conv_states.items()}


def _new_states(version: MemoryVersion) -> dict[int, ConvState]:
    config = version.config
    states: dict[int, ConvState] = {}
    for layer in config.layer_ids:
        device = next(version.modules[layer].parameters()).device
        states[layer] = ConvState(config.conv_history, config.conv_channels, device=device)
    return states
