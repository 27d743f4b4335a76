"""A contender that computes in a process of its own (`benchmarks.worker`).

Several models in one process would disturb each other: each thread that computes brings its own
pool of threads, and the OpenMP runtime waits differently once there are more than processors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.contender import UnavailableError
from benchmarks.json_process import JsonProcess
from benchmarks.run_times import RunTimes


class RemoteContender:
    """Passes prompts on and brings the run back."""

    def __init__(self, process: JsonProcess, name: str, bits: str, has_memory: bool) -> None:
        self._process = process
        self.name, self.bits, self.has_memory = name, bits, has_memory

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt. Raises RuntimeError when the worker failed."""
        answer = self._process.ask({"prompts": list(prompts), "new_tokens": new_tokens})
        return RunTimes(**answer)


@contextmanager
def open_remote(key: str, arguments: Sequence[str]) -> Iterator[RemoteContender]:
    """The contender of this name in a worker.

    Raises:
        UnavailableError: it cannot take part.
    """
    with JsonProcess("benchmarks.worker", [key, *arguments]) as process:
        hello = process.hear()
        if "unavailable" in hello:
            raise UnavailableError(hello["unavailable"])
        yield RemoteContender(process, hello["name"], hello["bits"], hello["has_memory"])
