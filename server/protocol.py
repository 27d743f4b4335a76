"""uvicorn's HTTP protocol with limits on a request's head, in bytes and in time.

A client that sends half a header and waits would otherwise hold its connection for ever. Also
answers unreadable requests in the wire's error shape, and lets the application drop a connection
together with its unsent bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.streaming import ABORT_EXTENSION
from server.wire.errors import error_body

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class GuardedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a bounded request head; the bounds are class attributes of a subclass."""

    max_header_size = 65_536
    header_timeout_s = 10.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_size = 0
        self._in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is new: its first request must begin soon."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection is gone."""
        self._disarm()
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
        extensions: dict[str, Any] = {ABORT_EXTENSION: self.transport.abort}
        self.scope["extensions"] = extensions
        self._in_head, self._head_size = True, 0
        self._arm()

    def on_headers_complete(self) -> None:
        """The end of a request's head."""
        self._in_head = False
        self._disarm()
        super().on_headers_complete()

    def timeout_keep_alive_handler(self) -> None:
        """An idle connection is closed; with bytes that its peer never took, dropped."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """A request that is not HTTP."""
        self._refuse(400, "the request is not valid HTTP", "validation")

    def _arm(self) -> None:
        self._disarm()
        self._head_timer = self.loop.call_later(self.header_timeout_s, self._time_out)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _time_out(self) -> None:
        if self._in_head:
            self._refuse(408, "the request head took too long to arrive", "timeout")
        elif not self.transport.is_closing():
            self.transport.close()  # nothing was ever sent

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


def guarded_protocol(max_header_size: int, header_timeout_s: float) -> type[GuardedProtocol]:
    """A protocol class with these bounds."""
    bounds = {"max_header_size": max_header_size, "header_timeout_s": header_timeout_s}
    return type("BoundGuardedProtocol", (GuardedProtocol,), bounds)
