"""Prefetcher: starts the lookups of prompts and decode steps before compute needs their rows.

Addresses depend on token ids alone, so a prompt's rows can be fetched while it waits or while
earlier layers compute. Decides who looks up (a worker thread or the layer itself) and says why.
Knows no requests and no scheduling.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch

from engram_core.cpu_cores import CpuCores, usable_cores
from engram_core.device import Device
from engram_core.errors import ConfigError, StateError
from engram_core.inline_limit import DEFAULT_INLINE_MAX_ROWS
from engram_core.memory import Int64Array, Memory
from engram_core.row_audit import RowAudit
from engram_core.staging import RowLanding
from engram_core.ticket import Ticket
from engram_core.worker import LookupWorker

DEFAULT_STAGING_BYTES = 256 * 2**20


class Prefetcher:
    """Opens tickets, and looks ahead for them where that helps.

    Args:
        device: where compute reads the rows.
        enabled: False starts nothing ahead: every layer looks its rows up itself.
        inline_max_rows: a decode step with at most so many rows per layer is looked up by its
            layer, unless one of its tiers waits for I/O; of memories that have no limit of their
            own.
        staging_bytes: what rows fetched ahead for prompts may occupy together.
        dtype: of the rows that compute reads, bfloat16 or float32.
        cores: usable processor cores; measured when left out.
        audit_share: of the lookups, which whoever computes looks up again (see `RowAudit`).

    Attributes:
        path: ``"async"``, ``"inline"`` or ``"off"``.
        why_path: the same with its reason, for people.
        audit: what compares them; None for no share.
    """

    def __init__(
        self,
        device: Device,
        *,
        enabled: bool = True,
        inline_max_rows: int = DEFAULT_INLINE_MAX_ROWS,
        staging_bytes: int = DEFAULT_STAGING_BYTES,
        dtype: torch.dtype = torch.float32,
        cores: CpuCores | None = None,
        audit_share: float = 0.0,
    ) -> None:
        if inline_max_rows < 0 or staging_bytes < 0:
            raise ConfigError(
                f"inline_max_rows is {inline_max_rows}, staging_bytes is {staging_bytes}; "
                "accepted: numbers >= 0"
            )
        self.audit = RowAudit(audit_share) if audit_share != 0 else None
        self._landing = RowLanding(device, dtype)
        self._inline_max_rows = inline_max_rows
        self.path, self.why_path = _choose_path(enabled, cores or usable_cores())
        self._worker = LookupWorker(staging_bytes) if self.path == "async" else None
        self._open: set[Ticket] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def open_tickets(self) -> int:
        """Tickets that were not released, or that still have a running lookup."""
        return len(self._open)

    @property
    def staging_used_bytes(self) -> int:
        """Bytes of rows fetched ahead for prompts that are not released yet."""
        return self._worker.reserved_bytes if self._worker is not None else 0

    def submit_prompt(
        self, version: Memory, token_ids: Sequence[int], history: Sequence[int] = ()
    ) -> Ticket:
        """Open a ticket for a prompt (or a part of one); returns at once.

        Args:
            version: the memory to read.
            token_ids: raw ids ``[tokens]``.
            history: raw ids before them, oldest first; the last N-1 matter.

        Raises:
            ConfigError: no tokens. StateError: the prefetcher was closed.
        """
        if not token_ids:
            raise ConfigError("token_ids is empty; accepted: at least one token")
        ids, past = tuple(token_ids), tuple(history)
        ticket = Ticket(
            version,
            "prefill",
            len(ids),
            lambda: version.hasher.windows(ids, past),
            self._landing,
            handed_off=self._worker is not None,
            on_closed=self._forget,
        )
        return self._open_ticket(ticket)

    def submit_step(self, version: Memory, windows: Int64Array) -> Ticket:
        """Open a ticket for a decode step; returns at once.

        Args:
            version: the memory to read.
            windows: int64 ``[n, N]``, the newest token of each of n sequences and its history.

        Raises:
            ConfigError: no sequences. StateError: the prefetcher was closed.
        """
        if len(windows) == 0:
            raise ConfigError("windows is empty; accepted: at least one sequence")
        windows = np.array(windows, dtype=np.int64)  # a snapshot: the caller may reuse its array
        ticket = Ticket(
            version,
            "decode",
            len(windows),
            lambda: windows,
            self._landing,
            handed_off=self._should_hand_off(version, len(windows)),
            on_closed=self._forget,
        )
        return self._open_ticket(ticket)

    def close(self) -> None:
        """Stop looking ahead; idempotent. Open tickets still give their rows."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._worker is not None:
            self._worker.close()

    def _should_hand_off(self, version: Memory, num_tokens: int) -> bool:
        if self._worker is None:
            return False
        limit = version.inline_limit
        most = self._inline_max_rows if limit is None else limit.max_rows
        rows = num_tokens * version.served.num_columns
        return rows > most or any(t.is_blocking for t in version.tiers.values())

    def _open_ticket(self, ticket: Ticket) -> Ticket:
        with self._lock:
            if not self._closed:
                self._open.add(ticket)
        try:
            if ticket not in self._open:
                raise StateError("the prefetcher was closed")
            if ticket.handed_off and self._worker is not None:
                self._worker.submit(ticket)
        except StateError:
            ticket.release()
            raise
        return ticket

    def _forget(self, ticket: Ticket) -> None:
        if ticket.handed_off and self._worker is not None:
            self._worker.forget(ticket)
        with self._lock:
            self._open.discard(ticket)


def _choose_path(enabled: bool, cores: CpuCores) -> tuple[str, str]:
    if not enabled:
        return "off", "off: prefetch is switched off, every layer looks its rows up itself"
    if cores.count < 2:
        return "inline", f"inline: {cores}, a worker would only take turns with compute"
    return "async", f"async: {cores}, prompts are looked up by a worker beside compute"
