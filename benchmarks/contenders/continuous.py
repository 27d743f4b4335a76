"""transformers' continuous batching: one manager, kept running, as `generate_batch` uses it.

Without the Engram memory: the manager gives a layer neither token ids nor requests, so nothing
could look rows up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import ContinuousBatchingConfig

from benchmarks.contenders.generate import greedy
from benchmarks.passing_thread import in_passing_thread
from benchmarks.run_times import RunTimes
from server.config import Settings
from server.loader import load

PAGE_TOKENS = 256  # the library's default
MAX_BATCH_TOKENS = 512  # as this server's default
RESULT_TIMEOUT_S = 120.0
NO_TOKEN = -1  # as end of sequence: never ends early


class ContinuousContender:
    """Hands prompts to a running ContinuousBatchingManager and reads its own time stamps."""

    name = "transformers continuous batching"
    has_memory = False

    def __init__(self, manager: Any, bits: str) -> None:
        self._manager, self.bits = manager, bits

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt.

        Raises:
            RuntimeError: a request failed.
        """
        start_s = time.perf_counter()
        ids = self._manager.add_requests(
            [list(prompt) for prompt in prompts], max_new_tokens=new_tokens, record_timestamps=True
        )
        outputs: dict[str, Any] = {}
        while len(outputs) < len(ids):
            result = self._manager.get_result(timeout=RESULT_TIMEOUT_S)
            if result is None or result.error is not None:
                raise RuntimeError(f"continuous batching failed: {result and result.error}")
            if result.is_finished():
                outputs[result.request_id] = result
        ordered = [outputs[request_id] for request_id in ids]
        times_s = [output.timestamps for output in ordered]
        return RunTimes(start_s, times_s, [output.generated_tokens for output in ordered])


def num_blocks(num_seqs: int, seq_tokens: int) -> int:
    """Blocks of a cache with room for twice that much."""
    return 2 * num_seqs * -(-seq_tokens // PAGE_TOKENS)


@contextmanager
def open_continuous(
    settings: Settings, bits: str, *, num_seqs: int, seq_tokens: int
) -> Iterator[ContinuousContender]:
    """A manager with a cache for so many sequences of so many tokens, started."""
    plain = settings.model_copy(update={"engram": "none"})
    # the manager computes in a thread of its own
    model = in_passing_thread(lambda: load(plain, lambda _phase, _fraction: None).model)
    config = ContinuousBatchingConfig(
        num_blocks=num_blocks(num_seqs, seq_tokens),
        max_batch_tokens=MAX_BATCH_TOKENS,
        allow_block_sharing=False,  # no two prompts begin alike
    )
    generation = greedy(seq_tokens)
    generation.eos_token_id = NO_TOKEN
    with torch.inference_mode():
        manager = model.init_continuous_batching(generation, continuous_batching_config=config)
        manager.start()
    try:
        yield ContinuousContender(manager, bits)
    finally:
        manager.stop(block=True)
        manager.destroy()
