"""The invariant that is checked whenever the engine is idle: everything was given back."""

from __future__ import annotations

from engram_core.errors import StateError
from server.engine.memory_desk import MemoryDesk
from server.engine.scheduler import Scheduler


def check_integrity(scheduler: Scheduler, desk: MemoryDesk, num_waiting_outside: int) -> None:
    """Compare what is held with what is known.

    ``num_waiting_outside`` sequences were submitted but not taken in yet; they may hold tickets.
    Raises StateError when a KV block or a ticket has no owner.
    """
    owned = [block for each in scheduler.sequences() for block in each.block_table]
    if len(owned) != scheduler.pool.num_used or len(owned) != len(set(owned)):
        raise StateError(
            f"{scheduler.pool.num_used} KV blocks are handed out, sequences hold {len(owned)} "
            f"({len(set(owned))} distinct)"
        )
    if scheduler.is_idle and not num_waiting_outside and desk.open_tickets:
        raise StateError(f"{desk.open_tickets} tickets are open, but no sequence is left")
