"""Bodies to models, and pydantic's findings to one sentence without the client's input.

A key or value that a client sent never appears in a message: only names of known fields, limits
and positions do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from server.wire.errors import ApiError, validation_error

Model = TypeVar("Model", bound=BaseModel)

MAX_LISTED = 50  # findings beyond this are counted, not listed: a body can hold 100,000
MAX_SAID = 3

_EXPECTED = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
}


def parse_body(model: type[Model], body: bytes) -> Model:
    """Read a JSON body.

    Raises:
        ApiError: 422 naming what is wrong.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise validation_error(describe(error)) from None


def describe(error: ValidationError) -> str:
    """One sentence for a client: the first few findings."""
    if error.error_count() > MAX_LISTED:
        return f"the body has {error.error_count()} mistakes, most of them unknown fields"
    findings = error.errors(include_url=False, include_input=False)
    said = list(dict.fromkeys(_finding(item) for item in findings))
    more = f"; and {len(said) - MAX_SAID} more" if len(said) > MAX_SAID else ""
    return "; ".join(said[:MAX_SAID]) + more


def _finding(item: Mapping[str, Any]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "json_invalid":
        return f"the body is not valid JSON: {context['error']}"
    if kind == "extra_forbidden":
        return f"{field_path(item['loc'][:-1])} has an unknown field"
    limits = {name: _short(value) for name, value in context.items()}
    expected = _EXPECTED.get(kind, "is not acceptable").format_map(limits)
    return f"{field_path(item['loc'])} {expected}"


def _short(value: Any) -> Any:
    """``2`` rather than ``2.0``."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def field_path(location: Iterable[str | int]) -> str:
    """```parameters.stop[0]```; the whole body for an empty location."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return f"`{path}`" if path else "the body"


def refuse_unsupported(name: str) -> ApiError:
    """422 for a field that is known and asks for something this server does not do."""
    return validation_error(f"`parameters.{name}` is not supported by this server; leave it out")
