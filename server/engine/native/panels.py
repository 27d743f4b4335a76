"""A product by panels: a chunk of columns and a block of rows, finished while it is in the cache.

Every user of a product does the same with the queue, the rows and the scratch; what differs is
where a finished row goes.
"""

from __future__ import annotations

from typing import Any

from server.engine.native.compiling import compiled
from server.engine.native.formats import LANES
from server.engine.native.matmul import CHUNK, multiply
from server.engine.native.teamwork import take

ROW_BLOCK = 64  # rows whose product with a chunk stays in the cache
_TABLE_BYTES = 64
# a thread's scratch begins with a table of addresses and one panel
PANEL_BYTES = _TABLE_BYTES + ROW_BLOCK * CHUNK * LANES * 4


def by_panels(finish: Any) -> Any:
    """A function that multiplies all rows of a job with a weight and finishes row by row.

    Args:
        finish: compiled; called with the job, the weight, ``size``, a row's number, the first
            column, how many there are, and the address of their float32 sums.

    The function takes the job, the weight, the address of its bfloat16 rows, ``size`` for
    ``finish``, the team's state and the thread's scratch.
    """

    @compiled
    def multiply_by_panels(job, weight, x, size, state, scratch):
        panel = scratch + _TABLE_BYTES
        width = weight.num_inputs * 2
        first = take(state) * CHUNK
        while first < weight.num_blocks:
            count = min(CHUNK, weight.num_blocks - first)
            columns = count * LANES
            for start in range(0, job.num_rows, ROW_BLOCK):
                rows = min(ROW_BLOCK, job.num_rows - start)
                at = x + start * width
                multiply(weight, first, count, rows, at, panel, columns * 4, scratch)
                for row in range(rows):
                    sums = panel + row * columns * 4
                    finish(job, weight, size, start + row, first * LANES, columns, sums)
            first = take(state) * CHUNK

    return multiply_by_panels
