"""How the threads of a team wait for each other and share work, in compiled code.

The team's state is an array of int64s, one cache line for each number that threads write: see the
offsets below. A barrier ends every phase of a job; behind it the queue of the next phase starts
from zero. Who waits first spins, then offers its core to others.
"""

from __future__ import annotations

from typing import Any

from server.engine.native.compiling import compiled
from server.engine.native.intrinsics import (
    add_now,
    load_now,
    pause,
    sched_yield,
    sem_post,
    sem_wait,
    store_now,
    swap_now,
)

LINE = 64  # bytes
JOB_NUMBER, ARRIVED, GENERATION, QUEUE, FIRST_SEAT = (LINE * line for line in range(5))
# a thread's seat: whether it sleeps, and behind that its semaphore
SEAT_BYTES = 2 * LINE
SEMAPHORE = LINE
NO_JOB = -1  # the number that sends the team home

_SPINS_BEFORE_YIELD = 2_000  # some 40 us
_SPINS_BEFORE_SLEEP = 12_000  # between jobs: the layers of one step follow each other closely


@compiled
def barrier(state: Any, num_threads: Any) -> None:
    """Wait until all threads are here; empties the queue."""
    if num_threads == 1:
        store_now(state + QUEUE, 0)
        return
    generation = load_now(state + GENERATION)
    if add_now(state + ARRIVED, 1) == num_threads - 1:
        store_now(state + ARRIVED, 0)
        store_now(state + QUEUE, 0)
        store_now(state + GENERATION, generation + 1)
        return
    spins = 0
    while load_now(state + GENERATION) == generation:
        spins += 1
        if spins < _SPINS_BEFORE_YIELD:
            pause()
        else:
            sched_yield()


@compiled
def take(state: Any) -> Any:
    """The number of the next piece of a phase's work."""
    return add_now(state + QUEUE, 1)


@compiled
def publish(state: Any, num_threads: Any) -> None:
    """Let the team begin the job that was written, and wake those who sleep."""
    store_now(state + JOB_NUMBER, load_now(state + JOB_NUMBER) + 1)
    _wake(state, num_threads)


@compiled
def dismiss(state: Any, num_threads: Any) -> None:
    """Send the team home."""
    store_now(state + JOB_NUMBER, NO_JOB)
    _wake(state, num_threads)


@compiled
def _wake(state: Any, num_threads: Any) -> None:
    for rank in range(1, num_threads):
        seat = state + FIRST_SEAT + rank * SEAT_BYTES
        if swap_now(seat, 0) == 1:
            sem_post(seat + SEMAPHORE)


@compiled
def await_job(state: Any, rank: Any, last: Any) -> Any:
    """The number of the job after ``last``; sleeps when there is none for a while."""
    seat = state + FIRST_SEAT + rank * SEAT_BYTES
    spins = 0
    while True:
        number = load_now(state + JOB_NUMBER)
        if number != last:
            return number
        spins += 1
        if spins < _SPINS_BEFORE_YIELD:
            pause()
        elif spins < _SPINS_BEFORE_SLEEP:
            for _ in range(8):
                pause()
            if spins % 16 == 0:
                sched_yield()
        else:
            _sleep(state, seat, last)
            spins = 0


@compiled
def _sleep(state: Any, seat: Any, last: Any) -> None:
    swap_now(seat, 1)
    # a job that came meanwhile found nobody asleep: then do not wait for its wake-up
    if load_now(state + JOB_NUMBER) != last and swap_now(seat, 0) == 1:
        return
    sem_wait(seat + SEMAPHORE)
