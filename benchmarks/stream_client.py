"""A client in a process of its own: opens streams together and notes when each frame arrives.

Reads one JSON job a line on stdin and answers with one JSON line on stdout. Only counts frames
while they arrive and takes them apart afterwards, so that it costs the server's machine little.
Imports nothing heavy.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvloop

END_OF_FRAME = b"\n\n"
JOB_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Arrivals:
    """What came of one stream.

    Attributes:
        times_s: when each frame was complete, on the monotonic clock of `time.perf_counter`.
        raw: everything received, as it came.
    """

    times_s: list[float] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)


class StreamProtocol(asyncio.Protocol):
    """One request on one connection, until the server closes it."""

    def __init__(self, request: bytes, ended: asyncio.Future[Arrivals]) -> None:
        self._request, self._ended = request, ended
        self._arrivals = Arrivals()
        self._last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request at once."""
        cast(asyncio.WriteTransport, transport).write(self._request)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        """Note the time of the frames that are complete now."""
        now_s = time.perf_counter()
        self._arrivals.raw += data
        num_frames = (self._last + data).count(END_OF_FRAME)
        self._arrivals.times_s += [now_s] * num_frames
        self._last = data[-1:]

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream is over, well or not."""
        if not self._ended.done():
            self._ended.set_result(self._arrivals)


async def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Open all streams of a job; its fields are `host`, `port`, `path` and `bodies`."""
    loop = asyncio.get_running_loop()
    requests = [_request(job, body) for body in job["bodies"]]
    ended: list[asyncio.Future[Arrivals]] = [loop.create_future() for _ in requests]
    cpu_s, start_s = time.process_time(), time.perf_counter()
    for request, end in zip(requests, ended, strict=True):
        connect = partial(StreamProtocol, request, end)
        try:
            await loop.create_connection(connect, job["host"], job["port"])
        except OSError:  # nobody listens: a stream without an answer
            end.set_result(Arrivals())
    async with asyncio.timeout(JOB_TIMEOUT_S):
        streams = await asyncio.gather(*ended)
    cpu_s = time.process_time() - cpu_s
    return {"start_s": start_s, "cpu_s": cpu_s, "streams": [describe(each) for each in streams]}


def _request(job: dict[str, Any], body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {job['path']} HTTP/1.1\r\nhost: {job['host']}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def describe(arrivals: Arrivals) -> dict[str, Any]:
    """JSON-ready: status, times, and the frames' data; of a refusal its body."""
    head, _, body = bytes(arrivals.raw).partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head else 0  # 0: no answer at all
    if b"transfer-encoding: chunked" in head.lower():
        body = unchunk(body)
    text = body.decode(errors="replace")
    frames = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    return {
        "status": status,
        "times_s": arrivals.times_s,
        "frames": frames,
        "error": "" if status == 200 else text,
    }


def unchunk(body: bytes) -> bytes:
    """The content of a chunked body; what is cut off is left out."""
    parts, position = [], 0
    while (end := body.find(b"\r\n", position)) >= 0:
        size = int(body[position:end], 16)
        if not size:
            break
        parts.append(body[end + 2 : end + 2 + size])
        position = end + 2 + size + 2
    return b"".join(parts)


def main() -> None:
    """Answer jobs until stdin ends."""
    for line in sys.stdin:
        answer = uvloop.run(run_job(json.loads(line)))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
