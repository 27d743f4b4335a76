"""Body limits, counted while the body arrives: by declared length, chunked or never ending.

Bytes beyond the limit are read for a moment and dropped, so that a client which is still sending
gets to see its 413 instead of a broken connection.
"""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.wire.errors import ApiError, too_large

MAX_DROPPED_BYTES = 16 * 2**20
MAX_DROP_S = 2.0


class BodyLimit:
    """Wraps `receive` so that reading a body is bounded in bytes and in time."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app, self._max_bytes, self._timeout_s = app, max_bytes, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; reading its body may raise ApiError 408 or 413."""
        if scope["type"] == "http":
            if _declared_length(scope) > self._max_bytes and _waits_for_go_ahead(scope):
                raise _over(self._max_bytes)
            receive = _BoundedReceive(receive, self._max_bytes, self._timeout_s)
        await self._app(scope, receive, send)


def _over(max_bytes: int) -> ApiError:
    return too_large(f"the body has more than {max_bytes} bytes")


def _declared_length(scope: Scope) -> int:
    """The body's length where it is declared; the HTTP parser has checked its form."""
    values = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(values[0]) if values and values[0].isdigit() else 0


def _waits_for_go_ahead(scope: Scope) -> bool:
    return any(name == b"expect" for name, _ in scope["headers"])


class _BoundedReceive:
    """`receive` with a byte and a time budget until the body has ended."""

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive, self._max_bytes = receive, max_bytes
        self._deadline_s: float | None = None
        self._timeout_s, self._count, self._done = timeout_s, 0, False

    async def __call__(self) -> Message:
        if self._done:
            return await self._receive()
        message = await self._receive_in_time()
        self._note(message)
        if self._count > self._max_bytes:
            await self._drop_rest()
            raise _over(self._max_bytes)
        return message

    def _note(self, message: Message) -> None:
        self._count += len(message.get("body", b""))
        self._done = message["type"] != "http.request" or not message.get("more_body", False)

    async def _receive_in_time(self) -> Message:
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + self._timeout_s
        left_s = max(self._deadline_s - time.monotonic(), 0)
        try:
            return await asyncio.wait_for(self._receive(), left_s)
        except TimeoutError:
            message = f"the body did not arrive within {self._timeout_s:g} seconds"
            raise ApiError(408, "timeout", message, {"connection": "close"}) from None

    async def _drop_rest(self) -> None:
        limit = self._count + MAX_DROPPED_BYTES
        try:
            async with asyncio.timeout(MAX_DROP_S):
                while not self._done and self._count < limit:
                    self._note(await self._receive())
        except TimeoutError:
            self._done = True
