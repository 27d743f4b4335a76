"""Reads a JSON object from a file, and typed fields out of it, with sentences for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram_core.errors import ArtefactError


def read_json(path: Path, accepted: str = "") -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ArtefactError: names the file and, where it is missing, what is `accepted`.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = f"; accepted: {accepted}" if accepted else ""
        raise ArtefactError(f"{path.name} is missing{hint}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror or "unreadable" if isinstance(error, OSError) else str(error)
        raise ArtefactError(f"{path.name} cannot be read as JSON: {reason}") from None
    if not isinstance(data, dict):
        raise ArtefactError(f"{path.name} is not valid: its top is no object")
    return data


def integer(data: Mapping[str, Any], key: str, where: str, least: int = 0) -> int:
    """A whole number of at least `least`. Raises ArtefactError naming file, key and value."""
    value = data.get(key)
    if not _is_integer(value, least):
        raise ArtefactError(
            f"{where}: {key} is {value!r}; accepted: a whole number >= {least} below 2^63"
        )
    return int(value)  # type: ignore[arg-type]


def integers(data: Mapping[str, Any], key: str, where: str, least: int = 0) -> tuple[int, ...]:
    """A list of at least one such number. Raises ArtefactError naming file, key and value."""
    values = data.get(key)
    if not isinstance(values, list) or not values or not all(_is_integer(v, least) for v in values):
        raise ArtefactError(
            f"{where}: {key} is {values!r}; accepted: a list of whole numbers >= {least}"
        )
    return tuple(values)


def _is_integer(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63
