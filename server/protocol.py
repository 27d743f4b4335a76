"""uvicorn's HTTP protocol with limits where a client could hold a connection for ever.

A request's head is bounded in bytes and in time; a body that goes on after its answer, and an
answer that is not read, are given up after a while. Also answers unreadable requests in the
wire's error shape, and lets the application drop a connection together with its unsent bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.middleware.failures import DROP_EXTENSION
from server.wire.errors import error_body

LINGER_S = 5.0  # how long the rest of a body may go on after its request was refused
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class GuardedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that waits for nobody; the bounds are class attributes of a subclass."""

    max_header_size = 65_536
    header_timeout_s = 10.0
    stall_timeout_s = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._head_size = 0
        self._in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is new: its first request must begin soon."""
        super().connection_made(transport)
        self._arm(self.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection is gone."""
        self._disarm()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived; counts those of an unfinished head."""
        super().data_received(data)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > self.max_header_size:
                limit = self.max_header_size
                self._refuse(431, f"the request head has more than {limit} bytes", "too_large")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        extensions: dict[str, Any] = {DROP_EXTENSION: self.transport.abort}
        self.scope["extensions"] = extensions
        self._in_head, self._head_size = True, 0
        self._arm(self.header_timeout_s)

    def on_headers_complete(self) -> None:
        """The end of a request's head."""
        self._in_head = False
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The end of a request's body."""
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is written, which does not mean that it is read, or that its request ended."""
        if self.cycle.response_complete and self.cycle.more_body:
            self._arm(LINGER_S)
        self._watch_flush(-1)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """A request that is not HTTP."""
        self._refuse(400, "the request is not valid HTTP", "validation")

    def _watch_flush(self, size_before: int) -> None:
        """Drop a connection whose peer takes nothing of an answer for a whole interval."""
        size = self.transport.get_write_buffer_size()
        if not size:
            self._flush_timer = None
        elif size == size_before:
            self.transport.abort()
        else:
            self._flush_timer = self.loop.call_later(self.stall_timeout_s, self._watch_flush, size)

    def _arm(self, delay_s: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(delay_s, self._time_out)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if self._in_head:
            self._refuse(408, "the request head took too long to arrive", "timeout")
        elif not self.transport.is_closing():
            self.transport.close()  # nothing was sent, or a body without an end

    def _refuse(self, status: int, message: str, error_type: str) -> None:
        self._in_head = False
        self._disarm()
        if self.transport.is_closing():
            return
        body = error_body(message, error_type)
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n" % (status, _REASONS[status])
        length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(head + length + body)
        self.transport.close()


def guarded_protocol(
    max_header_size: int, header_timeout_s: float, stall_timeout_s: float
) -> type[GuardedProtocol]:
    """A protocol class with these bounds."""
    bounds = {
        "max_header_size": max_header_size,
        "header_timeout_s": header_timeout_s,
        "stall_timeout_s": stall_timeout_s,
    }
    return type("BoundGuardedProtocol", (GuardedProtocol,), bounds)
