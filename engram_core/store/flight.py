"""How rows travel over Apache Arrow Flight: tickets, descriptions, limits; and pyarrow itself.

A read is one DoGet. Its ticket is a line of JSON (the memory's id and the table's name), then the
row ids as little-endian int64; the answer is one column of fixed-size binary, a row's bf16 values
each. Every ticket names the memory: a server that comes back with another one cannot answer.
The one importer of pyarrow, and only when something remote is made.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from engram_core.errors import ConfigError, TierRefusedError
from engram_core.store.base import RowIds
from engram_core.store.row_source import RowSourceDescription, ServedTable

DESCRIBE = "describe"  # the action that answers with a description
MAX_ROWS_PER_CALL = 65_536  # bounds what one call makes a server hold
AUTHORIZATION = "authorization"
_MAX_HEADER_BYTES = 1024
_ROW_ID = np.dtype("<i8")


class ArrowLibrary(NamedTuple):
    """The modules of pyarrow that are used; untyped."""

    arrow: Any
    flight: Any


def import_arrow() -> ArrowLibrary:
    """The modules of pyarrow.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow  # noqa: PLC0415 - an extra, and slow to import
        from pyarrow import flight  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "remote rows need pyarrow, which is not installed; accepted: "
            "pip install 'engram-server[remote]'"
        ) from None
    return ArrowLibrary(pyarrow, flight)


def check_token(token: str) -> bytes:
    """A shared token as the header's value.

    Raises:
        ConfigError: it cannot stand in a header. The token is not shown.
    """
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("the token for rows; accepted: printable ASCII without blanks")
    return b"Bearer " + token.encode("ascii")


class RowTicket(NamedTuple):
    """What a read asks for."""

    memory: str
    table: str
    row_ids: RowIds  # [n]

    def encode(self) -> bytes:
        """The ticket's bytes."""
        header = json.dumps({"memory": self.memory, "table": self.table})
        return header.encode() + b"\n" + self.row_ids.astype(_ROW_ID, copy=False).tobytes()

    @classmethod
    def decode(cls, ticket: bytes) -> RowTicket:
        """Read what `encode` wrote.

        Raises:
            TierRefusedError: it is something else, or asks for too many rows at once.
        """
        end = ticket.find(b"\n", 0, _MAX_HEADER_BYTES)
        num_bytes = len(ticket) - end - 1
        if end < 0 or num_bytes % _ROW_ID.itemsize:
            raise TierRefusedError("the ticket is none of this server's; are versions different?")
        if num_bytes > MAX_ROWS_PER_CALL * _ROW_ID.itemsize:
            num_rows = num_bytes // _ROW_ID.itemsize
            raise TierRefusedError(f"{num_rows} rows at once; accepted: up to {MAX_ROWS_PER_CALL}")
        try:
            header = json.loads(ticket[:end])
            memory, table = str(header["memory"]), str(header["table"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise TierRefusedError("the ticket's first line names no memory or table") from None
        ids = np.frombuffer(ticket, _ROW_ID, offset=end + 1).astype(np.int64)  # aligned by copying
        return cls(memory, table, ids)


def encode_description(description: RowSourceDescription) -> bytes:
    """A description as JSON."""
    tables = {
        name: {"num_rows": t.num_rows, "row_dim": t.row_dim, "ranges": t.ranges}
        for name, t in description.tables.items()
    }
    return json.dumps({"memory": description.memory, "tables": tables}).encode()


def decode_description(text: bytes, where: str) -> RowSourceDescription:
    """Read what `encode_description` wrote.

    Raises:
        TierRefusedError: it is something else.
    """
    try:
        data = json.loads(text)
        tables = {
            str(name): ServedTable(
                int(table["num_rows"]),
                int(table["row_dim"]),
                tuple((int(first), int(stop)) for first, stop in table["ranges"]),
            )
            for name, table in data["tables"].items()
        }
        return RowSourceDescription(str(data["memory"]), tables)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise TierRefusedError(f"{where} does not describe its rows: no row server?") from None
