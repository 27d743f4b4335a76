"""Team: the threads that compute kernels together.

The thread that calls `run` takes part; the others are Python threads that live inside one compiled
function, without the interpreter's lock, and sleep while there is nothing to do. One job at a time:
whoever comes second waits.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

import torch

from server.engine.aligned import aligned_bytes
from server.engine.native.panels import PANEL_BYTES
from server.engine.native.program import dismiss_team, run_job, work
from server.engine.native.records import JOB
from server.engine.native.teamwork import FIRST_SEAT, SEAT_BYTES, SEMAPHORE


class Team:
    """``num_threads`` threads that share every job, the caller's included.

    Attributes:
        num_threads: as given.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._lock = threading.Lock()
        self._state = aligned_bytes(FIRST_SEAT + num_threads * SEAT_BYTES)
        self._job = aligned_bytes(JOB.itemsize)
        self._record = self._job.view(JOB)
        self._private = aligned_bytes(0)
        self._reserved = 0
        _open_semaphores(self._address, num_threads)
        self.reserve(PANEL_BYTES)
        given = (self._address, int(self._job.ctypes.data))
        self._members = [
            threading.Thread(target=work, args=(*given, rank), name=f"kernels-{rank}", daemon=True)
            for rank in range(1, num_threads)
        ]
        for member in self._members:
            member.start()
        self._close = weakref.finalize(self, _send_home, self._state, self._job, self._members)

    @property
    def _address(self) -> int:
        return int(self._state.ctypes.data)

    def reserve(self, num_bytes: int) -> None:
        """Make every thread's scratch at least so large."""
        if num_bytes > self._reserved:
            with self._lock:
                self._reserved = -(-num_bytes // 64) * 64
                self._private = aligned_bytes(self._reserved * self.num_threads)

    def run(self, **fields: int) -> None:
        """Do a job together: the fields of a `records.JOB`; others are 0."""
        with self._lock:
            record = self._record
            record["num_threads"] = self.num_threads
            record["private"] = self._private.ctypes.data
            record["private_bytes"] = self._reserved
            for name, value in fields.items():
                record[name] = value
            run_job(self._address, int(self._job.ctypes.data))

    def close(self) -> None:
        """End the threads; idempotent."""
        self._close()


def _open_semaphores(state: int, num_threads: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for rank in range(1, num_threads):
        address = state + FIRST_SEAT + rank * SEAT_BYTES + SEMAPHORE
        if libc.sem_init(ctypes.c_void_p(address), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "a semaphore cannot be made")


def _send_home(state: Any, job: Any, members: list[threading.Thread]) -> None:
    """Keeps the memory that the threads look at until they have ended."""
    dismiss_team(int(state.ctypes.data), len(members) + 1)
    for member in members:
        member.join()


_teams: dict[int, Team] = {}
_teams_lock = threading.Lock()


def shared_team(num_threads: int) -> Team:
    """The process's team of that size: idle threads cost nothing, so it is never closed."""
    with _teams_lock:
        if num_threads not in _teams:
            _teams[num_threads] = Team(num_threads)
        return _teams[num_threads]


def default_threads() -> int:
    """Threads that torch would use: the operator's OMP_NUM_THREADS, else the cores."""
    return max(1, torch.get_num_threads() or os.cpu_count() or 1)
