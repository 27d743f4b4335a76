"""transformers' own `generate()`: greedy, one batch of equally long prompts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from benchmarks.run_times import RunTimes
from engram_core.splice import attach
from server.config import Settings
from server.loader import load


class GenerateContender:
    """Runs prompts through `model.generate()`; a memory is attached to the model beforehand.

    The lookups happen inside the forward: `generate()` has nobody to prefetch for it.
    """

    name = "transformers generate()"

    def __init__(self, model: Any, *, bits: str = "bf16", has_memory: bool = True) -> None:
        self._model, self.bits, self.has_memory = model, bits, has_memory

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each of the equally long prompts, whatever they are."""
        clock = _StepClock()
        input_ids = torch.tensor(prompts)  # [sequences, prompt tokens]
        start_s = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                generation_config=greedy(new_tokens),
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        answers = output[:, input_ids.shape[1] :].tolist()
        return RunTimes(start_s, [clock.times_s] * len(prompts), answers)


@contextmanager
def open_generate(settings: Settings, bits: str) -> Iterator[GenerateContender]:
    """`generate()` on the same model, with the same memory where the settings name one."""
    loaded = load(settings, lambda _phase, _fraction: None)
    if loaded.version is None:
        yield GenerateContender(loaded.model, bits=bits, has_memory=False)
        return
    with attach(loaded.model, loaded.version):
        yield GenerateContender(loaded.model, bits=bits, has_memory=True)
    loaded.version.release()


def greedy(new_tokens: int) -> GenerationConfig:
    """No end-of-sequence token: every side decodes exactly as many tokens as asked for."""
    config = GenerationConfig()  # type: ignore[no-untyped-call]
    config.do_sample, config.max_new_tokens, config.pad_token_id = False, new_tokens, 0
    config.eos_token_id = None
    return config


class _StepClock(StoppingCriteria):
    """Notes the time after each step; a step gives every sequence one token."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.times_s.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)
