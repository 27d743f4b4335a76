"""The real server process around the fake backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from fakes.http import wait_until

ROOT = Path(__file__).parents[2]


@contextmanager
def process(*flags, fake="", wait="listening"):
    """The process around the fake backend; yields it, its port and a way to its log."""
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("ENGRAM_")},
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "ENGRAM_FAKE": fake,
    }
    command = [sys.executable, "-W", "error", "-m", "fakes.main", "--port", "0", *flags]
    child = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(child.stderr), daemon=True)
    reader.start()
    try:
        wait_until(lambda: child.poll() is not None or wait in "".join(lines), 30, wait)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", "".join(lines))
        yield child, int(found[1]) if found else None, lines
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stderr.close()
