"""The program that every thread of a team runs: waits for a job, does its share, waits again.

The only functions that Python calls; whatever they need is compiled into them.
"""

from __future__ import annotations

from numba import carray

from server.engine.native.compiling import compiled, entry
from server.engine.native.intrinsics import int_pointer, memory
from server.engine.native.layer import run_layer
from server.engine.native.panels import by_panels
from server.engine.native.records import JOB, LAYER, SHAPE, WEIGHT
from server.engine.native.teamwork import NO_JOB, await_job, barrier, dismiss, publish, take
from server.engine.native.vectors import add_part_bias, floats, halves, log_sum_exp, to_bf16

LAYERS, PRODUCT, STATISTICS = range(3)  # kinds of a job

__all__ = ["LAYERS", "PRODUCT", "STATISTICS", "dismiss_team", "run_job", "work"]


@compiled
def _share(job, state, threads, rank):
    scratch = job.private + rank * job.private_bytes
    if job.kind == LAYERS:
        layers = carray(memory(job.layers), (job.first_layer + job.num_layers,), LAYER)
        shape = carray(memory(job.shape), (1,), SHAPE)[0]
        for number in range(job.first_layer, job.first_layer + job.num_layers):
            run_layer(job, layers[number], shape, state, threads, scratch)
    elif job.kind == PRODUCT:
        weight = carray(memory(job.weight), (1,), WEIGHT)[0]
        _product(job, weight, job.input, job.num_columns, state, scratch)
        barrier(state, threads)
    else:
        _statistics(job, state)
        barrier(state, threads)


@compiled
def _store_row(job, weight, size, row, column, count, sums):
    """Result = input x weight + bias, as bfloat16 or float32, without the padding's columns."""
    kept = min(count, size - column)
    part = floats(sums, kept)
    add_part_bias(part, weight.bias, column, kept)
    at = row * size + column
    if job.result_is_float:
        result = floats(job.result + at * 4, kept)
        for i in range(kept):
            result[i] = part[i]
    else:
        to_bf16(part, kept, halves(job.result + at * 2, kept))


_product = by_panels(_store_row)


@compiled
def _statistics(job, state):
    """Of each row of float32 numbers: where its maximum is, and the log of its sum of powers."""
    size = job.num_columns
    places = carray(int_pointer(job.result), (job.num_rows,))
    norms = floats(job.norms, job.num_rows)
    row = take(state)
    while row < job.num_rows:
        numbers = floats(job.input + row * job.row_bytes, size)
        places[row], norms[row] = log_sum_exp(numbers, size)
        row = take(state)


@entry("void(int64, int64, int64)")
def work(state, job, rank):
    """A team member's life; ends when the team is dismissed.

    Args:
        state: address of the team's state.
        job: address of a record of `records.JOB`.
        rank: 1 to threads - 1.
    """
    number = 0
    while True:
        number = await_job(state, rank, number)
        if number == NO_JOB:
            return
        given = carray(memory(job), (1,), JOB)[0]
        _share(given, state, given.num_threads, rank)


@entry("void(int64, int64)")
def run_job(state, job):
    """Do the job that was written, together with the team; returns when all is done."""
    given = carray(memory(job), (1,), JOB)[0]
    publish(state, given.num_threads)
    _share(given, state, given.num_threads, 0)


@entry("void(int64, int64)")
def dismiss_team(state, num_threads):
    """Send the team's threads home."""
    dismiss(state, num_threads)
