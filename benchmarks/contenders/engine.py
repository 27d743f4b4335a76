"""This server's engine without HTTP: the backend of `engram-server serve`, driven from a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from benchmarks.engine_run import EngineRun
from benchmarks.passing_thread import in_passing_thread
from benchmarks.run_times import RunTimes
from server.backend import load_backend
from server.config import Settings
from server.engine.engine import Engine
from server.engine.types import NullRecorder

STOP_TIMEOUT_S = 10.0


class EngineContender:
    """Submits prompts to a started engine and waits for the last answer."""

    def __init__(
        self, engine: Engine, *, name: str = "engine", bits: str = "bf16", has_memory: bool = True
    ) -> None:
        self.name, self.bits, self.has_memory = name, bits, has_memory
        self._engine = engine

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt.

        Raises:
            RuntimeError: the engine failed a request.
        """
        return EngineRun(self._engine, prompts, new_tokens).times


@contextmanager
def open_engine(settings: Settings, name: str, bits: str) -> Iterator[EngineContender]:
    """The engine that a server with these settings would run."""
    backend = in_passing_thread(
        lambda: load_backend(settings, NullRecorder(), lambda _phase, _fraction: None)
    )
    engine = cast(Engine, backend.engine)
    engine.start()
    try:
        yield EngineContender(engine, name=name, bits=bits, has_memory=backend.has_memory)
    finally:
        engine.stop(STOP_TIMEOUT_S)
        backend.close()
