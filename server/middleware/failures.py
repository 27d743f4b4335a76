"""Every failure gets an answer in the wire's error shape, and is counted once.

Inside the CORS layer, so that browsers may read errors too. Never repeats what the client sent.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from server.metrics import Metrics
from server.middleware.context import CLIENT_GONE, context_of
from server.wire.errors import ApiError, StreamStalledError, error_response

DROP_EXTENSION = "engram.drop"  # scope["extensions"]: closes the connection, unsent bytes and all
LOG = logging.getLogger("engram.error")


class FailureAnswers:
    """Turns exceptions into answers; the last resort for whatever a route did not expect."""

    def __init__(self, app: ASGIApp, metrics: Metrics, max_header_size: int) -> None:
        self._app, self._metrics, self._max_header_size = app, metrics, max_header_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; only an answer that had already begun fails further."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_head(scope)
            await self._app(scope, receive, send)
        except ClientDisconnect:
            self._note(scope, "disconnected")  # nobody is left to answer
        except StreamStalledError:
            self._note(scope, "stream_stall")
            await _drop_connection(scope)
        except Exception as error:  # noqa: BLE001 - the last resort: whatever it was, answer
            await self._answer(error, scope, receive, send)

    def _note(self, scope: Scope, reason: str) -> None:
        self._metrics.record_failure(reason)
        context_of(scope).facts["failure"] = reason

    def _check_head(self, scope: Scope) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if size > self._max_header_size:
            message = f"the request head has more than {self._max_header_size} bytes"
            raise ApiError(431, "too_large", message, {"connection": "close"})

    async def _answer(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        if not isinstance(error, ApiError):
            LOG.error("an unexpected error", exc_info=error, extra={"facts": {"id": context.id}})
            error = ApiError(500, "internal", "an internal error; the server's log has more")
        self._note(scope, error.error_type)
        if context.status != CLIENT_GONE:
            raise error  # the answer had begun: the connection is closed
        await error_response(error)(scope, receive, send)


async def _drop_connection(scope: Scope) -> None:
    """End a connection whose reader stands still: what is unsent would never be taken."""
    drop = scope.get("extensions", {}).get(DROP_EXTENSION)
    if drop is not None:
        drop()
        await asyncio.sleep(0)  # let the server note that the connection is lost
