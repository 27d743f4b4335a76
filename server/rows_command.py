"""``engram-server rows serve``: its flags.

Knows argparse and nothing heavy, so that --help and a wrong flag answer at once.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from server.row_settings import TOKEN_VARIABLE, read_rows_settings

EPILOG = f"""\
Several servers share a table by its heads: one serves --heads 0-3, another one --heads 4-7.

The rows travel unencrypted, and without a token to anybody who reaches the port: bind to loopback
or to an address of a private network. With --token-file, or a token in {TOKEN_VARIABLE}, every call
has to carry that token.

Exit codes: 0 stopped cleanly, 1 the artefact cannot be served, 2 a flag is wrong,
4 the address cannot be bound, 5 a reader kept a call open beyond the end.
"""


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
