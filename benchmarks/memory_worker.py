"""One engine with a memory of its own configuration, in a process of its own.

Says where its tables lie, then runs what it is given and tells what its lookups did meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.engine_run import EngineRun
from benchmarks.lookup_tally import LookupTally
from benchmarks.passing_thread import in_passing_thread
from benchmarks.worker import keep_stdout, say
from server.backend import load_backend
from server.config import Settings
from server.engine.engine import Engine
from server.runtime import Backend

STOP_TIMEOUT_S = 10.0
_POLL_S = 0.01
_IO_COUNTS = Path("/proc/self/io")


def main() -> None:
    """Serve with the settings of the first argument until stdin ends."""
    answers = keep_stdout()
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    tally = LookupTally()
    with _started(Settings(**job["settings"]), tally) as (backend, engine):
        info = backend.engram_info
        say(answers, {"why_tiers": info["why_tiers"], "tiers": info["tiers"]})
        for line in sys.stdin:
            say(answers, _run(engine, tally, json.loads(line)))


@contextmanager
def _started(settings: Settings, tally: LookupTally) -> Iterator[tuple[Backend, Engine]]:
    backend = in_passing_thread(
        lambda: load_backend(settings, tally, lambda _phase, _fraction: None)
    )
    engine = cast(Engine, backend.engine)
    engine.start()
    try:
        yield backend, engine
    finally:
        engine.stop(STOP_TIMEOUT_S)
        backend.close()


def _run(engine: Engine, tally: LookupTally, job: dict[str, Any]) -> dict[str, Any]:
    before = _disk_bytes()
    times = EngineRun(engine, job["prompts"], job["new_tokens"]).times
    _await_next_turn(engine)
    lookups = {phase: each.to_dict() for phase, each in tally.take().items()}
    return {"times": asdict(times), "lookups": lookups, "disk_bytes": _disk_bytes() - before}


def _await_next_turn(engine: Engine) -> None:
    """Wait until the last step, whose answers were sent before, has been recorded as well."""
    now_s = time.monotonic()
    while engine.status().last_step_s <= now_s:
        time.sleep(_POLL_S)


def _disk_bytes() -> int:
    """What this process made the system fetch from its disks so far; 0 where nobody tells."""
    try:
        lines = _IO_COUNTS.read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


if __name__ == "__main__":
    main()
