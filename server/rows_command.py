"""``engram-server rows serve``: its flags, and what they accept.

Knows argparse and nothing heavy, so that --help and a wrong flag answer at once.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKEN_VARIABLE = "ENGRAM_ROWS_TOKEN"  # noqa: S105 - the variable's name
_HEADS = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?")

EPILOG = f"""\
Several servers share a table by its heads: one serves --heads 0-3, another one --heads 4-7.

The rows travel unencrypted, and without a token to anybody who reaches the port: bind to loopback
or to an address of a private network. With --token-file, or a token in {TOKEN_VARIABLE}, every call
has to carry that token.

Exit codes: 0 stopped cleanly, 1 the artefact cannot be served, 2 a flag is wrong,
4 the address cannot be bound, 5 a reader kept a call open beyond the end.
"""


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


def add_rows(commands: Any) -> None:
    """Add the command ``rows`` and what it can do."""
    rows = commands.add_parser("rows", help="serve a memory's rows to servers elsewhere")
    inner = rows.add_subparsers(required=True, metavar="COMMAND")
    parser = inner.add_parser(
        "serve",
        help="serve the rows of an artefact over Apache Arrow Flight",
        description="Serve the rows of an artefact over Apache Arrow Flight.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--engram", required=True, metavar="NAME|PATH", help="the artefact to serve")
    add("--engram-dir", metavar="PATH", help="folder that NAME is looked for in too")
    add("--host", default="127.0.0.1", help="address to bind (default: 127.0.0.1)")
    add("--port", default="9100", metavar="N", help="port to bind; 0 takes one (default: 9100)")
    add("--heads", default="all", help="heads of every order: all, 0-3 or 0,2 (default: all)")
    add("--token-file", metavar="PATH", help="file with the token that every call has to carry")
    parser.set_defaults(command=serve_rows)


def serve_rows(given: dict[str, Any]) -> int:
    """Serve rows until told to stop; returns the exit code.

    Raises:
        RowsUsageError: a flag is wrong.
    """
    settings = read_rows_settings(given, os.environ)
    from server.row_server import run  # noqa: PLC0415

    return run(settings)


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
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RowsUsageError(f"cannot read the token file {Path(path).name}: {reason}") from None
    if not token:
        raise RowsUsageError(f"the token file {Path(path).name} holds no token")
    return token
