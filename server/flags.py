"""Settings as command line flags: options with help, and one sentence per mistake.

Everything is derived from the fields of `Settings`, so a new setting is a flag, an environment
variable and a line of the reference at once. Parses no values: pydantic does.
"""

from __future__ import annotations

import argparse
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from server.config import ENV_PREFIX, Settings
from server.sizes import format_size

POSITIONAL = "model"
SIZE_FIELDS = frozenset({"kv_cache_memory", "max_body_size", "max_header_size"})


def flag(name: str) -> str:
    """The command line spelling of a setting: ``max_num_seqs`` is ``--max-num-seqs``."""
    return name.upper() if name == POSITIONAL else "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return (ENV_PREFIX + name).upper()


def bounds(field: FieldInfo) -> dict[str, Any]:
    """The declared limits of a field: ``ge``, ``le``, ``pattern``, ``max_length`` and so on."""
    found: dict[str, Any] = {}
    for item in field.metadata:
        for key in ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern"):
            value = getattr(item, key, None)
            if value is not None:
                found[key] = value
    return found


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The allowed values of a field that has only a few."""
    kind = field.annotation
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def accepted(name: str) -> str:
    """What a setting accepts, as a phrase: ``a number from 1 to 65535``."""
    field = Settings.model_fields[name]
    limits, kinds = bounds(field), _kinds(field)
    if choices(field):
        return ", ".join(choices(field))
    if "ge" in limits:
        show = format_size if name in SIZE_FIELDS else str
        noun = "a number" if float in kinds else "a whole number"
        noun = "a size" if name in SIZE_FIELDS else noun
        return f"{noun} from {show(limits['ge'])} to {show(limits['le'])}"
    return _accepted_text(name, limits, kinds)


def _accepted_text(name: str, limits: Mapping[str, Any], kinds: set[Any]) -> str:
    if name == "device":
        return "auto, simulated, cpu, cuda, cuda:N, npu or npu:N"
    if name == "engram_config":
        return "a JSON object, or @FILE with one"
    if name == "cors_origin":
        return "* or origins such as https://example.org, comma separated"
    if name == "root_path":
        return "a path such as /engram, without a slash at its end"
    if Path in kinds:
        return "a path"
    return f"a text of {limits.get('min_length', 1)} to {limits.get('max_length', 4096)} characters"


def _kinds(field: FieldInfo) -> set[Any]:
    return {field.annotation, *typing.get_args(field.annotation)}


def add_settings(parser: argparse.ArgumentParser, names: set[str] | None = None) -> None:
    """Add a flag for every setting (or for `names`); only given flags appear in the result."""
    for name, field in Settings.model_fields.items():
        if name == POSITIONAL or (names is not None and name not in names):
            continue
        parser.add_argument(
            flag(name),
            dest=name,
            default=argparse.SUPPRESS,
            metavar=_metavar(name, field),
            help=f"{field.description}{default_note(name)}".replace("%", "%%"),
        )
    parser.add_argument(
        POSITIONAL,
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help=Settings.model_fields[POSITIONAL].description,
    )


def _metavar(name: str, field: FieldInfo) -> str:
    if choices(field):
        return "|".join(choices(field))
    if name == "prefetch_audit":
        return "SHARE"
    kinds = _kinds(field)
    for kind, word in ((Path, "PATH"), (float, "SECONDS"), (SecretStr, "KEY")):
        if kind in kinds:
            return word
    return "SIZE" if name in SIZE_FIELDS else "N" if int in kinds else name.upper()


def default_note(name: str) -> str:
    """`` (default: 8000)``, or nothing where the help text says it."""
    default = Settings.model_fields[name].default
    if default is None or default in ("", ()):
        return ""
    return f" (default: {format_size(default) if name in SIZE_FIELDS else default})"


def explain(error: ValidationError, given: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """One sentence per mistake: where it was said, its value and what is accepted."""
    return "; ".join(_sentences(error, given, environ))


def _sentences(
    error: ValidationError, given: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[str]:
    for item in error.errors(include_url=False):
        name = str(item["loc"][0]) if item["loc"] else ""
        if name not in Settings.model_fields:
            yield _whole_sentence(name, item["type"], item["msg"])
            continue
        place, value = _source(name, given, environ), item["input"]
        shown = "" if name == "api_key" else f" is {str(value)[:100]!r}"
        yield f"{place}{shown}; accepted: {accepted(name)}"


def _whole_sentence(name: str, kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return f"the settings file has no use for {name[:100]!r}; see docs/settings.md"
    return message.removeprefix("Value error, ")


def _source(name: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    if name in given:
        return flag(name)
    return variable(name) if variable(name) in environ else f"{name} in the settings file"
