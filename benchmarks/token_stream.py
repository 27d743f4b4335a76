"""One streamed answer of a running server, with the time at which each frame arrived."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

TIMEOUT_S = 600.0
_PREFIX = b"data:"


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event: when it arrived (`time.perf_counter`) and what it says."""

    arrived_s: float
    data: dict[str, Any]


def stream_frames(url: str, prompt: str, **parameters: Any) -> Generator[Frame]:
    """Ask for a streamed greedy answer; closing the iterator hangs up.

    Raises:
        RuntimeError: the server refused the request or failed it.
    """
    body = {"inputs": prompt, "parameters": {"ignore_eos": True, "details": True, **parameters}}
    with httpx.stream("POST", f"{url}/generate_stream", json=body, timeout=TIMEOUT_S) as response:
        if response.is_error:
            raise RuntimeError(f"{url} answered {response.status_code}: {response.read()!r}")
        for line in _lines(response.iter_raw()):
            if line.startswith(_PREFIX):
                yield _frame(line)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines of a body that arrives in pieces."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


def _frame(line: bytes) -> Frame:
    data = orjson.loads(line[len(_PREFIX) :])
    if "error" in data:
        raise RuntimeError(f"the server failed the request: {data['error']}")
    return Frame(time.perf_counter(), data)
