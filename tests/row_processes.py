"""`engram-server rows serve` as processes of their own, for tests that end them."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
READY_S = 60


@contextmanager
def row_server(*flags):
    """The process and its address."""
    command = [sys.executable, "-W", "error", "-m", "server.cli", "rows", "serve", *flags]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    watchdog = threading.Timer(READY_S, child.kill)
    watchdog.start()
    try:
        line = child.stdout.readline()
        yield child, line.strip()
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()


def address(line):
    return re.search(r" on (127\.0\.0\.1:[0-9]+)$", line)[1]
