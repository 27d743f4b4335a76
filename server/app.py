"""The FastAPI application: routes and middleware around one `Runtime`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from server import __version__
from server.api import admin, generate, health
from server.config import Settings
from server.lifespan import make_lifespan
from server.metrics import Metrics
from server.middleware import BodyLimit, ContextMiddleware, FailureAnswers, Gate, KeyCheck
from server.runtime import LoadBackend, Runtime
from server.wire.errors import ApiError

EXPOSED_HEADERS = ("x-request-id", "server-timing", "retry-after")
_HTTP_ERRORS = {
    404: ("not_found", "there is no such path"),
    405: ("method_not_allowed", "this path does not take that method"),
}


def create_app(settings: Settings, load: LoadBackend, metrics: Metrics | None = None) -> FastAPI:
    """Build the application; loading starts with its lifespan, in a thread.

    Args:
        settings: all settings.
        load: produces the backend; called once, off the event loop.
        metrics: where to report; a new one by default.

    Raises:
        SettingsFileError: the key file cannot be used.
    """
    runtime = Runtime(settings, metrics or Metrics())
    runtime.metrics.describe_build(__version__)
    app = FastAPI(
        title="Engram Server",
        version=__version__,
        lifespan=make_lifespan(runtime, load),
        redirect_slashes=False,  # a redirect would be built from the Host header
    )
    app.state.runtime = runtime
    app.openapi = lambda: _publish(app)  # type: ignore[method-assign]
    app.router.routes += [*generate.router.routes, *health.router.routes]
    if settings.admin_keys():  # without a key nobody could call them
        app.router.routes += admin.router.routes
    app.add_exception_handler(HTTPException, _refuse)
    app.user_middleware = _middleware(app, runtime)
    return app


def _publish(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that our routes read themselves."""
    document = FastAPI.openapi(app)
    document.setdefault("components", {})["schemas"] = generate.BODY_SCHEMAS
    return document


def public_routes(settings: Settings) -> frozenset[str]:
    """The paths that never need a key."""
    is_open = settings.metrics_auth == "off" or (
        settings.metrics_auth == "auto" and settings.is_loopback
    )
    return health.PUBLIC_ROUTES | ({"/metrics"} if is_open else frozenset())


def _middleware(app: FastAPI, runtime: Runtime) -> list[Middleware]:
    """From the outside in."""
    settings, metrics = runtime.settings, runtime.metrics
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    stack = [Middleware(ContextMiddleware, metrics=metrics, routes=paths)]
    if settings.cors_origin:
        stack.append(_cors(settings))
    stack.append(
        Middleware(FailureAnswers, metrics=metrics, max_header_size=settings.max_header_size)
    )
    keys, admin_keys = settings.api_keys(), settings.admin_keys()
    if keys or admin_keys:
        public = public_routes(settings)
        stack.append(Middleware(KeyCheck, keys=keys, public=public, admin_keys=admin_keys))
    stack.append(Middleware(Gate, runtime=runtime, work=generate.WORK_ROUTES))
    stack.append(
        Middleware(BodyLimit, max_bytes=settings.max_body_size, timeout_s=settings.body_timeout)
    )
    return stack


def _cors(settings: Settings) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origin,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "x-request-id"],
        expose_headers=EXPOSED_HEADERS,
    )


async def _refuse(request: Request, error: Exception) -> Response:
    """The router's own refusals, in the wire's error shape (see `FailureAnswers`)."""
    status = getattr(error, "status_code", 500)
    headers = getattr(error, "headers", None)
    kind, message = _HTTP_ERRORS.get(status, ("validation", "the request is refused"))
    raise ApiError(status, kind, message, headers)
