"""What ``rows serve`` can be told, and what it accepts.

Knows no argparse and nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engram_core.errors import ConfigError
from engram_core.store.row_token import read_row_token

TOKEN_VARIABLE = "ENGRAM_ROWS_TOKEN"  # noqa: S105 - the variable's name
_HEADS = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?")


class RowsUsageError(ValueError):
    """A flag of `rows serve` is wrong; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class RowServerSettings:
    """What `rows serve` was told.

    Attributes:
        engram: name or path of the artefact. engram_dir: where names are looked for too.
        host, port: where to listen; port 0 takes a free one.
        heads: the heads of every order to serve; None: all.
        token: what every call has to carry; None: nothing.
    """

    engram: str
    engram_dir: Path | None
    host: str
    port: int
    heads: tuple[int, ...] | None
    token: str | None


def read_rows_settings(given: Mapping[str, Any], environ: Mapping[str, str]) -> RowServerSettings:
    """The settings of given flags.

    Raises:
        RowsUsageError: names the flag, its value and what it accepts.
    """
    port = given["port"]
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise RowsUsageError(f"--port is {port[:100]!r}; accepted: a whole number from 0 to 65535")
    if not given["host"]:
        raise RowsUsageError("--host is ''; accepted: an address of this machine")
    folder = given["engram_dir"]
    return RowServerSettings(
        engram=given["engram"],
        engram_dir=Path(folder) if folder else None,
        host=given["host"],
        port=int(port),
        heads=parse_heads(given["heads"]),
        token=_read_token(given["token_file"], environ),
    )


def parse_heads(text: str) -> tuple[int, ...] | None:
    """Heads of ``all`` (None), ``0-3``, ``0,2`` or a mixture.

    Raises:
        RowsUsageError: it is none of these.
    """
    if text == "all":
        return None
    heads: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not _HEADS.fullmatch(part) or int(last or first) < int(first):
            raise RowsUsageError(f"--heads is {text[:100]!r}; accepted: all, 0-3 or 0,2")
        heads |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(heads))


def _read_token(path: str | None, environ: Mapping[str, str]) -> str | None:
    """The token of the file, else of the environment."""
    if path is None:
        return environ.get(TOKEN_VARIABLE) or None
    try:
        return read_row_token("--token-file", path)
    except ConfigError as error:
        raise RowsUsageError(str(error)) from None
