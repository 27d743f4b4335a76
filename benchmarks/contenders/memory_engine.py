"""This server's engine with a memory of its own configuration, in a process of its own.

Its runs bring their counters back, and between them the tables' files leave the page cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.bounded_pages import BoundedPages
from benchmarks.json_process import JsonProcess
from benchmarks.phase_tally import PhaseTally
from benchmarks.repetition import repeated_share
from benchmarks.run_times import RunTimes


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """What the lookups of one run did.

    Attributes:
        lookups: by phase.
        disk_bytes: what the process had the system fetch from a disk meanwhile.
        repeated: how much of the answers had been in the same answer before (`repeated_share`).
    """

    lookups: Mapping[str, PhaseTally]
    disk_bytes: int
    repeated: float


class MemoryContender:
    """Passes prompts on; keeps what each run's lookups did in `runs`.

    Attributes:
        why_tiers: where the tables lie and why, in the engine's words.
        tiers: per layer the tier and its bytes, as /info tells them.
        runs: of all runs so far; whoever begins a measurement may clear it.
    """

    has_memory = True

    def __init__(
        self, process: JsonProcess, name: str, bits: str, hello: Mapping[str, Any]
    ) -> None:
        self.name, self.bits = name, bits
        self.why_tiers: str = hello["why_tiers"]
        self.tiers: Mapping[str, Any] = hello["tiers"]
        self.pages: BoundedPages | None = None
        self.runs: list[MemoryRun] = []
        self._process = process

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt. Raises RuntimeError when the worker failed."""
        if self.pages is not None:
            self.pages.before_run()
        answer = self._process.ask({"prompts": list(prompts), "new_tokens": new_tokens})
        if self.pages is not None:
            self.pages.after_run()
        lookups = {phase: PhaseTally(**each) for phase, each in answer["lookups"].items()}
        times = RunTimes(**answer["times"])
        repeated = repeated_share(times.token_ids)
        self.runs.append(MemoryRun(lookups, answer["disk_bytes"], repeated))
        return times


@contextmanager
def open_memory_engine(
    name: str, bits: str, settings: Mapping[str, Any], threads: int
) -> Iterator[MemoryContender]:
    """The engine that a server with these settings would run.

    Args:
        name: the contender's.
        bits: number format of its weights, as tables name it.
        settings: values of `server.config.Settings`, JSON-ready.
        threads: that compute.

    Raises:
        RuntimeError: it did not start; the worker has said why.
    """
    job = json.dumps({"settings": dict(settings), "threads": threads})
    with JsonProcess("benchmarks.memory_worker", [job]) as process:
        yield MemoryContender(process, name, bits, process.hear())
