"""The key check: every path needs a key unless it is on a short public list.

Decides on the path that the router will see, never on the Host header.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from server.middleware.context import route_path
from server.wire.errors import unauthorized


class KeyCheck:
    """Refuses requests without an accepted bearer token."""

    def __init__(self, app: ASGIApp, keys: Iterable[str], public: frozenset[str]) -> None:
        self._app, self._public = app, public
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or raise ApiError 401."""
        if scope["type"] == "http" and not self._may_pass(scope):
            raise unauthorized()
        await self._app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        return route_path(scope) in self._public or self.accepts(_bearer_token(scope))

    def accepts(self, token: bytes | None) -> bool:
        """Whether a token is one of the keys; compares digests of all, in constant time."""
        if not token:
            return False
        digest = hashlib.sha256(token).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _bearer_token(scope: Scope) -> bytes | None:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(b" ")
    found: bytes = token.strip()
    return found if scheme.lower() == b"bearer" else None
