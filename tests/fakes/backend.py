"""A loaded backend around the fake engine, and a `load` function that makes it."""

from __future__ import annotations

import threading
from pathlib import Path

from tokenizers import Tokenizer

from engram_core.stats import HotCacheStats, MemoryStats, RowServerStats
from fakes.engine import FakeEngine, Script
from server.config import Settings
from server.metrics import Metrics
from server.runtime import Backend, Progress

TOKENIZERS = Path(__file__).parents[1] / "golden" / "demo_v1" / "tokenizers"


class FakeMemory:
    """What a memory with a hot cache in front of a row server counted."""

    is_freed = False

    def stats(self) -> MemoryStats:
        server = RowServerStats("10.0.0.7:9100", True, attempts=9, failures=4, retries=2)
        return MemoryStats(
            {(1, "hot"): HotCacheStats(8, 2, 3, 1, 2, 5, 512)}, {server.server: server}
        )


class FakeLoader:
    """Callable as `load`; can be held, slowed or made to fail."""

    def __init__(self, script: Script | None = None, *, has_memory: bool = True) -> None:
        self.script, self.has_memory = script or Script(), has_memory
        self.may_finish = threading.Event()
        self.may_finish.set()
        self.error: BaseException | None = None
        self.engine: FakeEngine | None = None

    def __call__(self, settings: Settings, metrics: Metrics, progress: Progress) -> Backend:
        progress("weights", 0.5)
        self.may_finish.wait(60)
        if self.error is not None:
            raise self.error
        self.engine = FakeEngine(
            self.script,
            metrics,
            max_num_seqs=settings.max_num_seqs,
            max_queue_len=settings.max_queue_len,
            max_model_len=settings.max_model_len or 2048,
            has_memory=self.has_memory,
        )
        return Backend(
            engine=self.engine,
            tokenizer=Tokenizer.from_file(str(TOKENIZERS / "tiny_bytelevel" / "tokenizer.json")),
            max_model_len=settings.max_model_len or 2048,
            device="cpu",
            dtype="float32",
            has_memory=self.has_memory,
            memory_id="fake-1" if self.has_memory else "none",
            model_info={"architecture": "Fake"},
            engram_info={
                "layers": [1],
                "why_tiers": "dram: fake",
                "why_orders": "2, 3: fake",
                "prefetch": {"path": "async", "why": "async: fake"},
            },
            table_bytes={1: 4096},
            resident_bytes={1: {"hot": 512, "host": 4096}},
            why_tiers="host: fake",
            memory=FakeMemory(),
            load_s={"weights": 0.1, "tables": 0.2},
        )
