"""The invariant that is checked whenever the engine is idle: everything was given back."""

from __future__ import annotations

from collections import Counter

from engram_core.errors import StateError
from server.engine.memory_desk import MemoryDesk
from server.engine.scheduler import Scheduler


def check_integrity(scheduler: Scheduler, desk: MemoryDesk, num_waiting_outside: int) -> None:
    """Compare what is held with what is known.

    ``num_waiting_outside`` sequences were submitted but not taken in yet; they may hold tickets.
    Raises StateError when a KV block or a ticket has no owner.
    """
    pool = scheduler.pool
    owned = Counter(block for each in scheduler.sequences() for block in each.block_table)
    if len(owned) != pool.num_used:
        raise StateError(f"{pool.num_used} KV blocks are handed out, sequences hold {len(owned)}")
    for block, count in owned.items():
        if pool.holders(block) != count:
            raise StateError(
                f"KV block {block} has {pool.holders(block)} holders, {count} sequences hold it"
            )
    if scheduler.is_idle and not num_waiting_outside and desk.open_tickets:
        raise StateError(f"{desk.open_tickets} tickets are open, but no sequence is left")
