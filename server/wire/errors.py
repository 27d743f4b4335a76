"""Errors as clients see them: a status, a type and one sentence that never repeats their input.

The body is ``{"error": sentence, "error_type": type}``, as text-generation-inference answers.
Knows nothing about routes or the engine.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.responses import Response

RETRY_AFTER_S = 1
NO_RETRY = {"x-should-retry": "false"}


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: HTTP status code.
        error_type: machine-readable type; also the label of the failure metric.
        message: one sentence for the client: no paths, none of the client's input.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        error_type: str,
        message: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.error_type, self.message = status, error_type, message
        self.headers = dict(headers or {})


class StreamStalledError(Exception):
    """The reader of a stream has not taken anything for too long; there is no answer to that."""


def validation_error(message: str) -> ApiError:
    """422: the request is understood and refused."""
    return ApiError(422, "validation", message)


def never_fits(message: str) -> ApiError:
    """422 for a request that no amount of retrying will make acceptable."""
    return ApiError(422, "validation", message, NO_RETRY)


def overloaded(message: str) -> ApiError:
    """429: come back later."""
    return ApiError(429, "overloaded", message, {"retry-after": str(RETRY_AFTER_S)})


def unavailable(message: str, retry_after_s: int = RETRY_AFTER_S) -> ApiError:
    """503: the server is loading, stopping or broken."""
    return ApiError(503, "unavailable", message, {"retry-after": str(retry_after_s)})


def too_large(message: str) -> ApiError:
    """413; the connection is closed, because the rest of the body was not read."""
    return ApiError(413, "too_large", message, {**NO_RETRY, "connection": "close"})


def unauthorized() -> ApiError:
    """401 with the scheme to use."""
    message = "a valid API key is needed: send `Authorization: Bearer KEY`"
    return ApiError(401, "unauthorized", message, {"www-authenticate": "Bearer"})


def error_body(message: str, error_type: str) -> bytes:
    """The JSON body of an error."""
    return orjson.dumps({"error": message, "error_type": error_type})


def error_response(error: ApiError) -> Response:
    """The whole answer to a failed request."""
    return Response(
        error_body(error.message, error.error_type),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )
