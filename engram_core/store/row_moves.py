"""Moves of rows between device tensors, sent with the rows that they need from the host.

However many moves and rows, they cross to the device in one copy: the moves' indices first, then
the rows. Knows no caches and no ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engram_core.device import Event
from engram_core.device_lane import DeviceLane

Indices = npt.NDArray[np.integer]
# Writes bf16 rows [n, row_dim] into host memory.
Fill = Callable[[torch.Tensor], None]
_INDEX_VALUES = 4  # bf16 values in an int64


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows that were sent, on the lane that sent them: others there may read them at once.

    Attributes:
        buffer: device tensor, flat. start: its first value that belongs to a row.
        shape: rows and values in a row.
    """

    buffer: torch.Tensor
    start: int
    shape: tuple[int, int]

    def rows(self) -> torch.Tensor:
        """The rows ``[n, row_dim]``; only for computations on their lane."""
        return self.buffer[self.start :].view(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class RowMove:
    """``target[target_rows] = source[source_rows]``.

    Attributes:
        target: device tensor ``[k, row_dim]``.
        target_rows: its rows ``[m]``, all different; None: all of them in order.
        source: where the rows are; None: they are sent beside the move.
        source_rows: rows of the source ``[m]``.
    """

    target: torch.Tensor
    target_rows: Indices | None
    source: torch.Tensor | SentRows | None
    source_rows: Indices

    def indices(self) -> list[Indices]:
        """What the device has to know of it."""
        return [each for each in (self.target_rows, self.source_rows) if each is not None]


def send(
    lane: DeviceLane, moves: Sequence[RowMove], shape: tuple[int, int], fill: Fill
) -> tuple[SentRows, Event, int]:
    """Send rows and moves, which the device then does in their order.

    Args:
        lane: all its tensors are read and written on this lane alone.
        moves: what is moved.
        shape: rows that are sent and values in a row.
        fill: called with pinned memory for them; nothing was queued yet if it raises.

    Returns:
        The rows on the device; the end of the moves; bytes that crossed.
    """
    indices = [each for move in moves for each in move.indices()]
    start = _INDEX_VALUES * sum(each.size for each in indices)
    num_values = start + shape[0] * shape[1]
    staging = lane.take(num_values)
    source = staging[:num_values]
    if indices:
        np.concatenate(indices, out=source[:start].view(torch.int64).numpy(), casting="safe")
    if shape[0]:
        fill(source[start:].view(shape))
    sent = SentRows(lane.empty((num_values,), torch.bfloat16), start, shape)
    lane.give(staging, lane.copy(source, sent.buffer))
    event = lane.run(lambda: _apply(moves, sent), [move.target for move in moves])
    return sent, event, source.nbytes


def _apply(moves: Sequence[RowMove], sent: SentRows) -> None:
    """On the device's side: take the moves' indices out of the buffer, one after another."""
    indices = sent.buffer[: sent.start].view(torch.int64)
    sizes = [each.size for move in moves for each in move.indices()]
    parts = iter(torch.split(indices, sizes))
    for move in moves:
        target_rows = None if move.target_rows is None else next(parts)
        source = sent if move.source is None else move.source
        rows = source.rows() if isinstance(source, SentRows) else source
        _move(move.target, target_rows, rows, next(parts))


def _move(
    target: torch.Tensor,
    target_rows: torch.Tensor | None,
    source: torch.Tensor,
    source_rows: torch.Tensor,
) -> None:
    if target_rows is None:
        torch.index_select(source, 0, source_rows, out=target)
    else:
        target.index_copy_(0, target_rows, source.index_select(0, source_rows))
