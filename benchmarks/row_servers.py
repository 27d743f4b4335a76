"""Row servers that a benchmark starts and stops itself: `engram-server rows serve`, by heads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.server_process import PROGRAM, stop


@contextmanager
def serve_rows(artefact: Path, heads: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """One process for each part of the heads, on loopback; yields their addresses.

    Args:
        artefact: the folder whose rows are served.
        heads: of each process, as ``--heads`` takes them, for example ``"0-3"`` and ``"4-7"``.

    Raises:
        RuntimeError: a row server did not start.
    """
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(artefact, part)) for part in heads]
        yield tuple(_address(each) for each in servers)


@contextmanager
def _server(artefact: Path, heads: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*PROGRAM, "rows", "serve", "--engram", str(artefact), "--heads", heads]
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        stop(process)
        if process.stdout is not None:
            process.stdout.close()


def _address(server: subprocess.Popen[bytes]) -> str:
    """It is the last word of the line that a row server prints once it is ready."""
    line = server.stdout.readline().decode() if server.stdout is not None else ""
    if not line:
        raise RuntimeError(f"a row server ended with exit code {server.wait()}")
    print(line.strip(), file=sys.stderr, flush=True)
    return line.split()[-1]
