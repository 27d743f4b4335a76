"""The outermost layer: request id, in-progress count, access log.

Knows nothing about what a route does; routes add facts to the log line through `RequestContext`.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.metrics import Metrics

ACCESS_LOG = logging.getLogger("engram.access")
CLIENT_GONE = 499  # what the log and the metric show when the client left before the answer

PROBES = frozenset({"/health", "/ready", "/metrics"})

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_KEY = "engram.context"


@dataclass(slots=True)
class RequestContext:
    """What is known about one HTTP request; `facts` end up in its log line."""

    id: str
    method: str
    route: str
    arrival_s: float = field(default_factory=time.monotonic)
    status: int = CLIENT_GONE
    generates: bool = False
    key_digest: str = ""  # of the key that was accepted; empty where none is needed
    facts: dict[str, Any] = field(default_factory=dict)


def context_of(scope: Scope) -> RequestContext:
    """The context of a request inside `ContextMiddleware`."""
    context: RequestContext = scope[_KEY]
    return context


def route_path(scope: Scope) -> str:
    """The path as the router sees it: without the proxy's prefix."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    if prefix and (path == prefix or path.startswith(prefix + "/")):
        return path[len(prefix) :]
    return path


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's x-request-id when it is sane, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return value.decode("ascii")
    return uuid.uuid4().hex


class ContextMiddleware:
    """Gives every request an id, one log line and a place in the metrics."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: frozenset[str]) -> None:
        self._app, self._metrics, self._routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        route = path if path in self._routes else "other"
        context = RequestContext(request_id(scope["headers"]), scope["method"], route)
        scope[_KEY] = context
        self._metrics.request_started()
        try:
            await self._app(scope, receive, _with_id(send, context))
        finally:
            self._report(context)

    def _report(self, context: RequestContext) -> None:
        level = logging.DEBUG if _is_quiet_probe(context) else logging.INFO
        duration_s = time.monotonic() - context.arrival_s
        self._metrics.request_ended(
            context.route, context.status, duration_s if context.generates else None
        )
        ACCESS_LOG.log(
            level,
            "request",
            extra={
                "facts": {
                    "id": context.id,
                    "method": context.method,
                    "route": context.route,
                    "status": context.status,
                    "duration_s": round(duration_s, 4),
                    **context.facts,
                }
            },
        )


def _is_quiet_probe(context: RequestContext) -> bool:
    """Probes and scrapes come every few seconds for ever: worth a line when they fail."""
    return context.route in PROBES and context.status == 200


def _with_id(send: Send, context: RequestContext) -> Send:
    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            context.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = context.id
        await send(message)

    return send_with_id
