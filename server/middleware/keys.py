"""The key check: every path needs a key unless it is on a short public list.

Decides on the path that the router will see, never on the Host header.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from server.middleware.context import context_of, route_path
from server.wire.errors import unauthorized


class KeyCheck:
    """Refuses requests without an accepted bearer token."""

    def __init__(self, app: ASGIApp, keys: Iterable[str], public: frozenset[str]) -> None:
        self._app, self._public = app, public
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or raise ApiError 401."""
        if scope["type"] == "http" and route_path(scope) not in self._public:
            context_of(scope).key_digest = self._accept(_bearer_token(scope))
        await self._app(scope, receive, send)

    def _accept(self, token: bytes | None) -> str:
        """The digest of an accepted token; compares it with all keys, in constant time."""
        digest = hashlib.sha256(token or b"").digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not token or not any(matches):
            raise unauthorized()
        return digest.hex()


def _bearer_token(scope: Scope) -> bytes | None:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(b" ")
    found: bytes = token.strip()
    return found if scheme.lower() == b"bearer" else None
