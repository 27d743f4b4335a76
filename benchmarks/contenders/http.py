"""This server as users reach it: its own process, streams over HTTP, the client in another one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.client_process import ClientProcess
from benchmarks.prompt_source import PromptSource
from benchmarks.run_times import RunTimes
from benchmarks.server_process import PROGRAM, serve
from server.config import Settings


class HttpContender:
    """Streams prompts through /generate_stream.

    Args:
        url: of a running server.
        client: opens the streams.
        prompts: tells a prompt's text.
    """

    name = "engram-server HTTP"

    def __init__(
        self,
        url: str,
        client: ClientProcess,
        prompts: PromptSource,
        *,
        bits: str = "bf16",
        has_memory: bool = True,
    ) -> None:
        self._url, self._client, self._prompts = url, client, prompts
        self.bits, self.has_memory = bits, has_memory

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RunTimes:
        """Generate `new_tokens` for each prompt.

        Raises:
            RuntimeError: a stream was refused or broke off.
        """
        parameters = {"max_new_tokens": new_tokens, "do_sample": False, "ignore_eos": True}
        bodies = [
            {"inputs": self._prompts.text(list(prompt)), "parameters": parameters}
            for prompt in prompts
        ]
        answer = self._client.stream(self._url, "/generate_stream", bodies)
        return run_times(answer, new_tokens)


def run_times(answer: dict[str, Any], new_tokens: int) -> RunTimes:
    """The run behind a client's answer.

    Raises:
        RuntimeError: a stream was refused or broke off.
    """
    streams = answer["streams"]
    token_ids = [_token_ids(stream, new_tokens) for stream in streams]
    return RunTimes(answer["start_s"], [stream["times_s"] for stream in streams], token_ids)


def _token_ids(stream: dict[str, Any], new_tokens: int) -> list[int]:
    if stream["status"] != 200:
        raise RuntimeError(f"a stream was answered {stream['status']}: {stream['error']}")
    frames = [json.loads(frame) for frame in stream["frames"]]
    if len(frames) != new_tokens or len(stream["times_s"]) != new_tokens:
        raise RuntimeError(f"a stream has {len(frames)} frames instead of {new_tokens}")
    return [frame["token"]["id"] for frame in frames]


@contextmanager
def open_http(
    settings: Settings,
    client: ClientProcess,
    prompts: PromptSource,
    *,
    bits: str,
    program: Sequence[str] = PROGRAM,
) -> Iterator[HttpContender]:
    """`engram-server serve` with these settings; another `program` replaces the server's."""
    arguments = ["--device", settings.device, "--dtype", settings.dtype, "--log-level", "warning"]
    arguments += ["--engram", settings.engram]
    if settings.model is not None:
        arguments.append(str(settings.model))
    with serve(arguments, program=program) as served:
        contender = HttpContender(
            served.url, client, prompts, bits=bits, has_memory=settings.engram != "none"
        )
        if program != PROGRAM:
            contender.name = f"HTTP by {program[-1]}"
        yield contender
