"""How many rows a second come from a row server on loopback, by how many are asked for at once.

The server runs in a process of its own, with random rows in memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.json_process import JsonProcess
from benchmarks.report import environment, table, write_json
from engram_core.store.base import RowIds
from engram_core.store.flight_server import FlightRowServer
from engram_core.store.flight_source import FlightRowSource
from engram_core.store.host import HostTier
from engram_core.store.local_rows import LocalRowSource
from engram_core.store.remote import RemoteTier
from engram_core.store.row_source import RowSourceDescription, ServedTable

COUNTS = (256, 4096, 65_536)
TABLE = "layer0"
MEMORY = "random rows"
TIMEOUT_S = 10.0
WARM_UP = 5


def serve(num_rows: int, row_dim: int) -> None:
    """Serve random rows until the input ends; the first line of output names the port."""
    generator = np.random.default_rng(0)
    words = generator.integers(-(2**15), 2**15, (num_rows, row_dim), dtype=np.int16)
    tier = HostTier(torch.from_numpy(words).view(torch.bfloat16))
    served = ServedTable(num_rows, row_dim, ((0, num_rows),))
    source = LocalRowSource(RowSourceDescription(MEMORY, {TABLE: served}), {TABLE: tier})
    with FlightRowServer(source) as server:
        print(json.dumps({"port": server.port}), flush=True)
        sys.stdin.read()


def time_reads(
    read: Callable[[RowIds], object], num_rows: int, count: int, repeats: int
) -> list[float]:
    """Seconds of each of `repeats` reads of `count` random row ids."""
    generator = np.random.default_rng(count)
    seconds = []
    for _ in range(repeats + WARM_UP):
        ids = generator.integers(0, num_rows, count)
        started = time.perf_counter()
        read(ids)
        seconds.append(time.perf_counter() - started)
    return seconds[WARM_UP:]


def measure(port: int, args: argparse.Namespace) -> dict[str, dict[int, list[float]]]:
    """Seconds of each read, by what reads and by the number of rows."""
    source = FlightRowSource(f"127.0.0.1:{port}", MEMORY)
    tier = RemoteTier(source, TABLE, args.rows, args.row_dim, timeout_s=TIMEOUT_S)
    outs = {n: torch.empty(n, args.row_dim, dtype=torch.bfloat16) for n in COUNTS}
    reads: dict[str, Callable[[RowIds], object]] = {
        "FlightRowSource.read_rows": lambda ids: source.read_rows(TABLE, ids, TIMEOUT_S),
        "RemoteTier.gather": lambda ids: tier.gather(ids, outs[ids.size]),
    }
    found = {
        name: {n: time_reads(read, args.rows, n, args.repeats) for n in COUNTS}
        for name, read in reads.items()
    }
    source.close()
    return found


def render(found: dict[str, dict[int, list[float]]]) -> str:
    """Medians."""
    lines = [
        [name, f"{count}", f"{1e3 * median(seconds):.2f}", f"{count / median(seconds) / 1e6:.2f}"]
        for name, by_count in found.items()
        for count, seconds in by_count.items()
    ]
    return table(["", "rows at once", "median ms", "million rows/s"], lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the report."""
    args = _parser().parse_args(argv)
    if args.serve:
        serve(args.rows, args.row_dim)
        return 0
    shape = [f"--rows={args.rows}", f"--row-dim={args.row_dim}"]
    with JsonProcess("benchmarks.remote_rows", [*shape, "--serve"]) as server:
        found = measure(server.hear()["port"], args)
    print(render(found))
    write_json(args.output, {"environment": environment(), "shape": shape, "seconds": found})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote_rows", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--row-dim", type=int, default=64, help="values in a row")
    parser.add_argument("--repeats", type=int, default=30, help="counted reads of every size")
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
