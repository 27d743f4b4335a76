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
from engram_core.step import EngramStep, RowSpan
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
    step = memory.engram
    lookups = {ticket: ticket.drain_stats() for ticket in _tickets(memory)}
    shares = {ticket: _shares(ticket, stats, step.waits) for ticket, stats in lookups.items()}
    gates = {layer: _mean_gates(step, layer) for layer in step.gates}
    sums = {
        layer: _span_sums(values, batch)
        for layer, values in gates.items()
        if layer not in step.silent_layers
    }
    for index, (span, rows) in enumerate(zip(batch.spans, memory.spans, strict=True)):
        if rows is not None:
            usage = span.sequence.usage
            _add_shares(usage, shares[rows.ticket])
            for layer in gates:
                entry = _layer(usage, layer)
                entry.gate_count += span.num_tokens
                if layer in sums:
                    entry.gate_sum += sums[layer][index]
    flat = tuple(stats for each in lookups.values() for stats in each)
    return MemoryFigures(flat, tuple(step.waits), gates)


def _tickets(memory: MemoryStep) -> list[Ticket]:
    return list(dict.fromkeys(rows.ticket for rows in memory.spans if rows is not None))


def _mean_gates(step: EngramStep, layer: int) -> npt.NDArray[np.float32]:
    """Gates ``[tokens]``, the mean over streams; silent layers ask no device."""
    if layer in step.silent_layers:
        return np.zeros(step.num_tokens, dtype=np.float32)
    gates = step.gates[layer]
    mean = gates[:, 0] if gates.shape[1] == 1 else gates.float().mean(-1)
    values: npt.NDArray[np.float32] = mean.float().cpu().numpy()
    return values


def _span_sums(values: npt.NDArray[np.float32], batch: Batch) -> list[float]:
    """The sum of each span's gates."""
    if len(values) == len(batch.spans):
        each: list[float] = values.tolist()
        return each
    sums: list[float] = []
    row = 0
    for span in batch.spans:
        sums.append(float(values[row : row + span.num_tokens].sum()))
        row += span.num_tokens
    return sums


def _layer(usage: dict[int, LayerUsage], layer: int) -> LayerUsage:
    entry = usage.get(layer)
    if entry is None:
        entry = usage[layer] = LayerUsage(layer)
    return entry


def _shares(
    ticket: Ticket, lookups: Sequence[LookupStats], waits: Sequence[WaitStats]
) -> list[LayerUsage]:
    """What each holder of a ticket gets added, one entry for every lookup and wait."""
    holders = ticket.num_tokens if ticket.phase == "decode" else 1
    shares = [
        LayerUsage(stats.layer, wait_s=stats.wait_s)
        for stats in waits
        if stats.phase == ticket.phase
    ]
    for stats in lookups:
        rows = stats.rows // holders
        tiers = {tier: count // holders for tier, count in stats.rows_by_tier.items()}
        unique = rows if holders > 1 else stats.unique_rows
        shares.append(LayerUsage(stats.layer, stats.duration_s, 0.0, rows, unique, tiers))
    return shares


def _add_shares(usage: dict[int, LayerUsage], shares: Sequence[LayerUsage]) -> None:
    for share in shares:
        entry = _layer(usage, share.layer)
        entry.lookup_s += share.lookup_s
        entry.wait_s += share.wait_s
        entry.rows += share.rows
        entry.unique_rows += share.unique_rows
        for tier, count in share.rows_by_tier.items():
            entry.rows_by_tier[tier] = entry.rows_by_tier.get(tier, 0) + count


def token_memory(
    span: Span, rows: RowSpan, last_row: int, gates: Gates, decode: Callable[[list[int]], str]
) -> tuple[TokenMemory, ...]:
    """What the memory did at the span's last position, which chose the next token.

    ``last_row`` is that position's row in the packed step.
    """
    reach = span.sequence.version.served.reach
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
