"""`transformers serve` with continuous batching, over HTTP, without the Engram memory.

Its chunks carry text, not token ids, and a chunk may hold more than one token; the last one tells
how many tokens there were.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.client_process import ClientProcess
from benchmarks.contender import UnavailableError
from benchmarks.contenders.continuous import MAX_BATCH_TOKENS, num_blocks
from benchmarks.prompt_source import PromptSource
from benchmarks.run_times import RunTimes
from benchmarks.server_process import free_port, stop

NEEDED = ("openai", "accelerate")  # what transformers' extra "serving" adds to this environment
READY_TIMEOUT_S = 120.0


class TransformersServeContender:
    """Streams prompts through /v1/completions of `transformers serve`."""

    name = "transformers serve"
    has_memory = False

    def __init__(
        self, url: str, model: str, client: ClientProcess, prompts: PromptSource, bits: str
    ) -> None:
        self._url, self._model, self.bits = url, model, bits
        self._client, self._prompts = client, prompts

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt.

        Raises:
            RuntimeError: a stream was refused or broke off.
        """
        generation = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": -1}
        common = {"model": self._model, "stream": True, "generation_config": json.dumps(generation)}
        bodies = [{**common, "prompt": self._prompts.text(list(prompt))} for prompt in prompts]
        answer = self._client.stream(self._url, "/v1/completions", bodies)
        streams = answer["streams"]
        times_s = [token_times(stream, new_tokens) for stream in streams]
        return RunTimes(answer["start_s"], times_s, [[] for _ in streams])


def token_times(stream: dict[str, Any], new_tokens: int) -> list[float]:
    """When each token arrived; tokens that share a chunk arrived with it.

    Raises:
        RuntimeError: the stream was refused, or its last chunk counts other tokens.
    """
    if stream["status"] != 200:
        raise RuntimeError(f"a stream was answered {stream['status']}: {stream['error']}")
    chunks = [json.loads(frame) for frame in stream["frames"] if frame != "[DONE]"]
    usage = (chunks[-1].get("usage") if chunks else None) or {}
    if usage.get("completion_tokens") != new_tokens:
        raise RuntimeError(f"a stream ended with {usage} instead of {new_tokens} tokens")
    timed = list(zip(stream["times_s"], chunks, strict=False))
    with_text = [at_s for at_s, chunk in timed if chunk["choices"] and chunk["choices"][0]["text"]]
    return [with_text[number * len(with_text) // new_tokens] for number in range(new_tokens)]


@contextmanager
def open_transformers_serve(
    model_folder: Path,
    client: ClientProcess,
    prompts: PromptSource,
    *,
    bits: str,
    dtype: str,
    num_seqs: int,
    seq_tokens: int,
) -> Iterator[TransformersServeContender]:
    """The server of this environment's transformers, on a free port.

    Raises:
        UnavailableError: what it needs is not installed.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"transformers serve: {' and '.join(missing)} not installed; "
            f"`pip install {' '.join(NEEDED)}` adds what it needs"
        )
    port = free_port()
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(model_folder)]
    command += ["--continuous-batching", "--device", "cpu", "--dtype", dtype]
    # left to itself it takes 60 % of the machine's memory for keys, values and masks
    command += ["--cb-num-blocks", str(num_blocks(num_seqs, seq_tokens))]
    command += ["--cb-max-batch-tokens", str(MAX_BATCH_TOKENS)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(url, process)
        yield TransformersServeContender(url, str(model_folder), client, prompts, bits)
    finally:
        stop(process)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise UnavailableError(f"transformers serve: not ready (exit code {process.poll()})")
