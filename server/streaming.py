"""Generations to HTTP: collecting one answer, or writing server-sent events as they come.

Both give the generation up when the client leaves; a stream also when its reader stands still.
Admission, validation and tokenising happen before: once a stream has begun, a failure can only be
a frame. Knows nothing about request bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from server.engine.types import Event, FailureEvent, FinishEvent, TokenEvent
from server.generation import Generation
from server.stall_watch import StallWatch
from server.wire.errors import ApiError, StreamStalledError, unavailable

_FAILURES = {
    "generation": 424,
    "queue_timeout": 503,
    "deadline": 504,
    "cancelled": 503,
    "engine_dead": 503,
}
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Collected:
    """A complete generation."""

    tokens: tuple[TokenEvent, ...]
    finish: FinishEvent


def failure_error(event: FailureEvent) -> ApiError:
    """The answer to a generation that failed."""
    status = _FAILURES[event.kind]
    if status == 503:
        return ApiError(503, event.kind, event.message, unavailable("").headers)
    return ApiError(status, event.kind, event.message)


async def collect(generation: Generation, receive: Receive) -> Collected:
    """Wait for a whole generation while watching the connection.

    Raises:
        ApiError: the generation failed.
        ClientDisconnect: the client left; the caller gives the generation up.
    """
    return await _unless_disconnected(_collect(generation), receive)


async def _collect(generation: Generation) -> Collected:
    tokens: list[TokenEvent] = []
    while True:
        for event in await generation.next_events():
            if isinstance(event, FinishEvent):
                return Collected(tuple(tokens), event)
            if isinstance(event, FailureEvent):
                raise failure_error(event)
            tokens.append(event)


async def _unless_disconnected(work: Awaitable[Result], receive: Receive) -> Result:
    """The result of `work`, or ClientDisconnect as soon as the client is gone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class FrameWriter:
    """Builds the frames of one stream from events; the route says what is in them."""

    def __init__(
        self,
        frame: Callable[[TokenEvent, FinishEvent | None], bytes],
        failure: Callable[[ApiError], bytes],
    ) -> None:
        self._frame, self._failure = frame, failure
        self._latest: TokenEvent | None = None
        self.error: ApiError | None = None
        self.ended = False

    def write(self, event: Event) -> bytes:
        """The bytes that an event adds: none for a last token, whose frame carries the end."""
        if isinstance(event, TokenEvent):
            self._latest = event
            return b"" if event.last else _sse(self._frame(event, None))
        self.ended = True
        if isinstance(event, FailureEvent):
            self.error = failure_error(event)
            return _sse(self._failure(self.error))
        return self._write_end(event)

    def _write_end(self, finish: FinishEvent) -> bytes:
        token = self._latest
        if token is None:
            raise RuntimeError("a generation finished without a token")
        if not token.last:  # its frame is out already: repeat it without its text
            token = replace(token, text_delta="")
        return _sse(self._frame(token, finish))


def _sse(data: bytes) -> bytes:
    """A server-sent event; JSON has no line breaks that would have to be split."""
    return b"data: %b\n\n" % data


class EventStream(Response):
    """A streaming answer: frames of one generation, until its end or the client's.

    A client that leaves or a reader that stands still ends it with an exception, which the
    middleware around it reports; a generation that fails ends it with an error frame.

    Args:
        generation: aborted if it has not ended when the response is over.
        writer: makes the frames.
        headers: response headers beside the content type.
        stall_timeout_s: how long one write may wait for the reader.
        on_failure: called with the error of an error frame.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        writer: FrameWriter,
        headers: Mapping[str, str],
        stall_timeout_s: float,
        on_failure: Callable[[ApiError], None],
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers(headers)
        self._generation, self._writer = generation, writer
        self._stall_timeout_s, self._on_failure = stall_timeout_s, on_failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the stream to its end.

        Raises:
            ClientDisconnect: the client left.
            StreamStalledError: the reader stood still.
        """
        with self._generation:
            await _unless_disconnected(self._write(send), receive)
        if self._writer.error is not None:
            self._on_failure(self._writer.error)

    async def _write(self, send: Send) -> None:
        try:
            async with StallWatch(self._stall_timeout_s) as watch:
                async for message in self._messages():
                    watch.begin()
                    await send(message)
                    watch.end()
        except TimeoutError:
            raise StreamStalledError from None

    async def _messages(self) -> AsyncIterator[Message]:
        """What is sent, in order; all frames that are there travel in one message."""
        yield {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        while not self._writer.ended:
            events = await self._generation.next_events()
            frames = b"".join(map(self._writer.write, events))
            if frames:
                yield {"type": "http.response.body", "body": frames, "more_body": True}
        yield {"type": "http.response.body", "body": b"", "more_body": False}
