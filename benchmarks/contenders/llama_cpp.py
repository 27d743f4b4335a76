"""llama.cpp on the same weights, written as GGUF; without the Engram memory, which it cannot read.

Flash attention is left at llama.cpp's own default (auto).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contender import UnavailableError
from benchmarks.contenders.llama_library import LlamaModel
from benchmarks.gguf_export import export_gguf
from benchmarks.run_times import RunTimes

HOW_TO_GET = (
    "llama.cpp: no libraries found in {folder}; `make llama-cpp` fetches prebuilt ones from npm"
)


class LlamaCppContender:
    """Prompts in batches, then one token of every sequence per call, as its own benchmark does."""

    has_memory = False

    def __init__(self, model: LlamaModel, bits: str) -> None:
        self.name, self.bits = f"llama.cpp {bits}", bits
        self._model = model

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt."""
        self._model.forget()
        start_s = time.perf_counter()
        answers: list[list[int]] = [[] for _ in prompts]
        times_s: list[list[float]] = [[] for _ in prompts]
        for group in _groups(prompts, self._model.max_batch):
            tokens = [
                (token_id, number, position, position + 1 == len(prompts[number]))
                for number in group
                for position, token_id in enumerate(prompts[number])
            ]
            self._step(tokens, group, answers, times_s)
        everyone = range(len(prompts))
        for step in range(new_tokens - 1):
            tokens = [(answers[n][-1], n, len(prompts[n]) + step, True) for n in everyone]
            self._step(tokens, everyone, answers, times_s)
        return RunTimes(start_s, times_s, answers)

    def _step(
        self,
        tokens: list[tuple[int, int, int, bool]],
        group: Sequence[int],
        answers: list[list[int]],
        times_s: list[list[float]],
    ) -> None:
        chosen = self._model.decode(tokens)
        now_s = time.perf_counter()
        for number, token_id in zip(group, chosen, strict=True):
            answers[number].append(token_id)
            times_s[number].append(now_s)


def _groups(prompts: Sequence[Sequence[int]], max_batch: int) -> Iterator[list[int]]:
    """Numbers of prompts that fit into one call together."""
    group: list[int] = []
    for number, prompt in enumerate(prompts):
        if len(prompt) > max_batch:
            raise ValueError(f"a prompt has {len(prompt)} tokens; accepted: at most {max_batch}")
        if sum(len(prompts[n]) for n in group) + len(prompt) > max_batch:
            yield group
            group = []
        group.append(number)
    yield group


@contextmanager
def open_llama_cpp(
    libraries: Path, model_folder: Path, bits: str, *, num_seqs: int, seq_tokens: int, threads: int
) -> Iterator[LlamaCppContender]:
    """llama.cpp with the model in `model_folder`, converted to `bits`.

    Raises:
        UnavailableError: no usable libraries, or a model that the conversion does not know.
    """
    if not list(libraries.glob("libllama*")):
        raise UnavailableError(HOW_TO_GET.format(folder=libraries))
    with tempfile.TemporaryDirectory() as work:
        gguf = Path(work) / f"model-{bits}.gguf"
        try:
            export_gguf(model_folder, gguf, bits)
        except ValueError as error:
            raise UnavailableError(f"llama.cpp: {error}") from None
        model = LlamaModel(
            libraries, gguf, num_seqs=num_seqs, seq_tokens=seq_tokens, num_threads=threads
        )
        try:
            yield LlamaCppContender(model, bits)
        finally:
            model.close()
