"""What the memory did in one step: for the recorder, for each request, for each token.

A decode step's ticket serves several sequences. Its time counts in full for each of them (each
one waited), its rows are shared out; the rows of one token are always distinct, because every
column has a range of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engram_core.stats import LookupStats, WaitStats
from engram_core.step import RowSpan
from engram_core.ticket import Ticket
from server.engine.batch import Batch, Span
from server.engine.memory_desk import MemoryStep
from server.engine.types import LayerUsage, TokenMemory

Gates = Mapping[int, npt.NDArray[np.float32]]  # [layer] -> [tokens], mean over streams


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """What one forward's memory did."""

    lookups: tuple[LookupStats, ...] = ()
    waits: tuple[WaitStats, ...] = ()
    gates: Gates = field(default_factory=dict)


def account(batch: Batch, memory: MemoryStep) -> MemoryFigures:
    """Add the step to its requests' usage; returns the figures of the whole step."""
    lookups = {ticket: ticket.drain_stats() for ticket in _tickets(memory)}
    gates = {
        layer: gate.float().mean(-1).cpu().numpy() for layer, gate in memory.engram.gates.items()
    }
    row = 0
    for span, rows in zip(batch.spans, memory.spans, strict=True):
        stop = row + span.num_tokens
        if rows is not None:
            usage = span.sequence.usage
            _add_lookups(usage, rows.ticket, lookups[rows.ticket])
            _add_waits(usage, rows.ticket, memory.engram.waits)
            _add_gates(usage, gates, row, stop)
        row = stop
    flat = tuple(stats for each in lookups.values() for stats in each)
    return MemoryFigures(flat, tuple(memory.engram.waits), gates)


def _tickets(memory: MemoryStep) -> list[Ticket]:
    return list(dict.fromkeys(rows.ticket for rows in memory.spans if rows is not None))


def _layer(usage: dict[int, LayerUsage], layer: int) -> LayerUsage:
    return usage.setdefault(layer, LayerUsage(layer))


def _add_lookups(
    usage: dict[int, LayerUsage], ticket: Ticket, lookups: Sequence[LookupStats]
) -> None:
    holders = ticket.num_tokens if ticket.phase == "decode" else 1
    for stats in lookups:
        layer = _layer(usage, stats.layer)
        rows = stats.rows // holders
        layer.lookup_s += stats.duration_s
        layer.rows += rows
        layer.unique_rows += rows if holders > 1 else stats.unique_rows
        for tier, count in stats.rows_by_tier.items():
            layer.rows_by_tier[tier] = layer.rows_by_tier.get(tier, 0) + count // holders


def _add_waits(usage: dict[int, LayerUsage], ticket: Ticket, waits: Sequence[WaitStats]) -> None:
    for stats in waits:
        if stats.phase == ticket.phase:
            _layer(usage, stats.layer).wait_s += stats.wait_s


def _add_gates(usage: dict[int, LayerUsage], gates: Gates, row: int, stop: int) -> None:
    for layer, values in gates.items():
        entry = _layer(usage, layer)
        entry.gate_sum += float(values[row:stop].sum())
        entry.gate_count += stop - row


def token_memory(
    span: Span, rows: RowSpan, last_row: int, gates: Gates, decode: Callable[[list[int]], str]
) -> tuple[TokenMemory, ...]:
    """What the memory did at the span's last position, which chose the next token.

    ``last_row`` is that position's row in the packed step.
    """
    reach = span.sequence.version.config.max_order
    ngram = decode(span.sequence.token_ids[max(0, span.stop - reach) : span.stop])
    return tuple(
        TokenMemory(
            layer,
            float(values[last_row]),
            ngram,
            tuple(rows.ticket.row_ids(layer)[rows.stop - 1].tolist()),
            rows.ticket.tiers(layer),
        )
        for layer, values in sorted(gates.items())
    )
