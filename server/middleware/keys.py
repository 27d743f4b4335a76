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

ADMIN_PREFIX = "/admin/"


class KeyCheck:
    """Refuses requests without an accepted bearer token.

    Args:
        app: what is protected.
        keys: accepted on every path but the public and the admin ones; none: no key is needed.
        public: paths without a key.
        admin_keys: the only ones that are accepted below ``/admin/``.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Iterable[str],
        public: frozenset[str],
        admin_keys: Iterable[str] = (),
    ) -> None:
        self._app, self._public = app, public
        self._digests, self._admin_digests = _digests(keys), _digests(admin_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or raise ApiError 401."""
        if scope["type"] == "http":
            path = route_path(scope)
            if path.startswith(ADMIN_PREFIX):
                _accept(_bearer_token(scope), self._admin_digests)
            elif self._digests and path not in self._public:
                context_of(scope).key_digest = _accept(_bearer_token(scope), self._digests)
        await self._app(scope, receive, send)


def _digests(keys: Iterable[str]) -> list[bytes]:
    return [hashlib.sha256(key.encode()).digest() for key in keys]


def _accept(token: bytes | None, digests: Iterable[bytes]) -> str:
    """The digest of an accepted token; compares it with all keys, in constant time."""
    digest = hashlib.sha256(token or b"").digest()
    matches = [hmac.compare_digest(digest, known) for known in digests]
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
