"""Pure ASGI middleware, from the outside in: context, failures, keys, gate, body limits."""

from server.middleware.body import BodyLimit
from server.middleware.context import ContextMiddleware, RequestContext, context_of
from server.middleware.failures import FailureAnswers
from server.middleware.gate import Gate
from server.middleware.keys import KeyCheck

__all__ = [
    "BodyLimit",
    "ContextMiddleware",
    "FailureAnswers",
    "Gate",
    "KeyCheck",
    "RequestContext",
    "context_of",
]
