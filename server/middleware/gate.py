"""The gate before generation: ready or 503, a free place or 429, and the place given back.

Stands in front of reading and tokenising the body, so that refusing costs almost nothing.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from server.middleware.context import context_of, route_path
from server.runtime import Runtime


class Gate:
    """Lets work in while the server is ready and has places."""

    def __init__(self, app: ASGIApp, runtime: Runtime, work: frozenset[str]) -> None:
        self._app, self._runtime, self._work = app, runtime, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; raises ApiError 503 or 429 for work that cannot be done now."""
        if not self._is_work(scope):
            await self._app(scope, receive, send)
            return
        refusal = self._runtime.refusal()
        if refusal is not None:
            raise refusal
        context_of(scope).generates = True
        with self._runtime.admission.place():
            await self._app(scope, receive, send)

    def _is_work(self, scope: Scope) -> bool:
        return (
            scope["type"] == "http"
            and scope["method"] == "POST"
            and route_path(scope) in self._work
        )
