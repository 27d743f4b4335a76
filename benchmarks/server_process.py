"""Servers that a benchmark starts and stops itself."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.served_model import ServedModel

PROGRAM = (sys.executable, "-m", "server.cli")
READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.05


@contextmanager
def serve(
    arguments: Sequence[str], *, program: Sequence[str] = PROGRAM, folder: Path | None = None
) -> Iterator[ServedModel]:
    """Run `engram-server serve` with these arguments on a free loopback port until the block ends.

    Args:
        arguments: of `serve`.
        program: the command in front of `serve`; default: this environment's.
        folder: where it runs; default: here.

    Raises:
        RuntimeError: the server ended or did not become ready.
    """
    port = free_port()
    command = [*program, "serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder)
    try:
        with ServedModel(f"http://127.0.0.1:{port}") as served:
            wait_until_ready(served, process)
            yield served
    finally:
        stop(process)


def wait_until_ready(served: ServedModel, process: subprocess.Popen[bytes]) -> None:
    """Wait for /ready. Raises RuntimeError when the server ended, or takes too long."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not served.is_ready():
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the server was not ready after {READY_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end; one that does not is killed."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
