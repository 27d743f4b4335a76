"""Every contender by the name that selects it, and how to open it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from benchmarks.client_process import ClientProcess
from benchmarks.contender import Contender, UnavailableError
from benchmarks.contenders.continuous import open_continuous
from benchmarks.contenders.engine import open_engine
from benchmarks.contenders.generate import open_generate
from benchmarks.contenders.http import open_http
from benchmarks.contenders.llama_cpp import open_llama_cpp
from benchmarks.contenders.remote import open_remote
from benchmarks.contenders.transformers_serve import open_transformers_serve
from benchmarks.prompt_source import PromptSource
from server.config import Settings

Opener = Callable[[], AbstractContextManager[Contender]]
QUANTIZED = ("int8", "int4")
TUNED = {"torch": {"kernels": "torch"}, "deterministic": {"deterministic": "on"}}
BITS = {"bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What contenders are opened with; passes to a worker as JSON.

    Attributes:
        model: the setting of that name; None means the default model.
        model_folder: where that model lies.
        engram: the setting of that name.
        dtype: number format of the weights.
        libraries: folder of llama.cpp's libraries.
        num_seqs: most sequences side by side.
        seq_tokens: longest prompt plus answer.
        threads: threads that compute.
    """

    model: str | None
    model_folder: str
    engram: str
    dtype: str
    libraries: str
    num_seqs: int
    seq_tokens: int
    threads: int

    @property
    def settings(self) -> Settings:
        """This server's settings."""
        given: dict[str, Any] = {"model": self.model, "engram": self.engram, "dtype": self.dtype}
        return Settings(**given, device="cpu")

    @property
    def bits(self) -> str:
        """The number format as the table names it."""
        return BITS.get(self.dtype, self.dtype)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


def local_contenders(around: Surroundings) -> dict[str, Opener]:
    """Name -> how to open what computes in this process; nothing is opened yet."""
    settings, bits = around.settings, around.bits
    plain = settings.model_copy(update={"engram": "none"})
    shape = {"num_seqs": around.num_seqs, "seq_tokens": around.seq_tokens}
    openers: dict[str, Opener] = {
        "engine": partial(open_engine, settings, "engine", bits),
        "engine-off": partial(open_engine, plain, "engine, memory off", bits),
        "generate": partial(open_generate, settings, bits),
        "continuous": partial(open_continuous, settings, bits, **shape),
    }
    llama = partial(open_llama_cpp, Path(around.libraries), Path(around.model_folder))
    for each in (bits, *QUANTIZED):
        key = "llama" if each == bits else f"llama-{each}"
        openers[key] = partial(llama, each, threads=around.threads, **shape)
    for each in (*QUANTIZED, "auto"):
        quantized = settings.model_copy(update={"quantize": each})
        openers[f"engine-{each}"] = partial(open_engine, quantized, f"engine {each}", each)
    for name, change in TUNED.items():
        tuned = settings.model_copy(update=change)
        openers[f"engine-{name}"] = partial(open_engine, tuned, f"engine, {name}", bits)
    return openers


def contenders(
    around: Surroundings, client: ClientProcess, prompts: PromptSource
) -> dict[str, Opener]:
    """Name -> how to open it, in a process of its own; nothing is opened yet."""
    openers: dict[str, Opener] = {
        name: partial(open_remote, name, [around.to_json()]) for name in local_contenders(around)
    }
    openers["http"] = partial(open_http, around.settings, client, prompts, bits=around.bits)
    openers["serve"] = partial(
        open_transformers_serve,
        Path(around.model_folder),
        client,
        prompts,
        bits=around.bits,
        dtype=around.dtype,
        num_seqs=around.num_seqs,
        seq_tokens=around.seq_tokens,
    )
    return openers


@contextmanager
def opened(
    names: Sequence[str], openers: dict[str, Opener]
) -> Iterator[tuple[dict[str, Contender], list[str]]]:
    """The contenders that can take part, by name, and a sentence for each that cannot."""
    found: dict[str, Contender] = {}
    missing: list[str] = []
    with ExitStack() as stack:
        for name in names:
            try:
                found[name] = stack.enter_context(openers[name]())
            except UnavailableError as error:
                missing.append(str(error))
        yield found, missing
