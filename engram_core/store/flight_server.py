"""FlightRowServer: serves a row source over Apache Arrow Flight.

Answers DoGet (rows) and the action ``describe``; knows no artefacts and no command line. Without a
token everybody who reaches the port may read: it belongs in a private network.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

from engram_core.errors import EngramError, MismatchError
from engram_core.store.flight import (
    AUTHORIZATION,
    DESCRIBE,
    ArrowLibrary,
    RowTicket,
    check_token,
    encode_description,
    import_arrow,
)
from engram_core.store.row_source import RowSource

_log = logging.getLogger(__name__)


class FlightRowServer:
    """A running server; it answers in threads of its own until it is closed.

    Args:
        source: whose rows are served; must not wait for others.
        host: address to bind. port: 0 takes a free one.
        token: what every call has to carry; None asks for nothing.

    Attributes:
        port: the bound port.

    Raises:
        ConfigError: the token is malformed, or pyarrow is not installed.
        OSError: the address cannot be bound.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        library = import_arrow()
        middleware = {} if token is None else {"token": _token_check(library, check_token(token))}
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self._server = _make_server(library, source, f"grpc://{place}", middleware)
        except (library.arrow.ArrowException, OSError):
            raise OSError(f"the address {place} is taken or not one of this machine's") from None
        self.port: int = self._server.port

    def close(self, timeout_s: float = 5.0) -> bool:
        """Refuse new calls and wait for running ones; False when some still run after that time.

        Idempotent. A reader that stopped reading can hold a call for ever.
        """
        ending = threading.Thread(target=self._server.shutdown, name="rows-shutdown", daemon=True)
        ending.start()
        ending.join(timeout_s)
        return not ending.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _make_server(
    library: ArrowLibrary, source: RowSource, location: str, middleware: Mapping[str, Any]
) -> Any:
    """The Flight server; its class can only be written where pyarrow is."""
    calls = _Calls(library, source)

    class Server(library.flight.FlightServerBase):  # type: ignore[misc, name-defined]
        def do_get(self, context: Any, ticket: Any) -> Any:
            return calls.answer(lambda: calls.rows(ticket.ticket))

        def do_action(self, context: Any, action: Any) -> Any:
            return calls.answer(lambda: calls.act(action.type))

    return Server(location, middleware=dict(middleware))


class _Calls:
    """What the calls answer."""

    def __init__(self, library: ArrowLibrary, source: RowSource) -> None:
        self._arrow, self._flight = library
        self._source = source
        self._description = source.describe(0.0)

    def rows(self, ticket: bytes) -> Any:
        memory, table, row_ids = RowTicket.decode(ticket)
        if memory != self._description.memory:
            raise MismatchError("memory", expected=memory, found=self._description.memory)
        words = self._source.read_rows(table, row_ids, 0.0)
        kind = self._arrow.binary(words.shape[1] * words.itemsize)
        buffers = [None, self._arrow.py_buffer(words.astype("<i2", copy=False))]
        column = self._arrow.FixedSizeBinaryArray.from_buffers(kind, len(words), buffers)
        answer = self._arrow.Table.from_arrays([column], names=["rows"])
        return self._flight.RecordBatchStream(answer)

    def act(self, action: str) -> Sequence[bytes]:
        if action != DESCRIBE:
            raise EngramError(f"action {action[:100]!r}; accepted: {DESCRIBE}")
        return [encode_description(self._description)]

    def answer(self, call: Any) -> Any:
        """The call's answer; a failure travels as its sentence and without a traceback."""
        try:
            return call()
        except EngramError as error:
            sentence = str(error)
        except Exception:  # noqa: BLE001 - whatever it was must not travel as a traceback
            _log.exception("a call for rows failed")
            sentence = "the row server failed; its log says why"
        raise self._flight.FlightServerError(sentence, extra_info=sentence.encode())


def _token_check(library: ArrowLibrary, expected: bytes) -> Any:
    """Middleware that refuses calls without the token, compared in constant time."""
    flight = library.flight
    digest = hashlib.sha256(expected).digest()

    class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc, name-defined]
        def start_call(self, info: Any, headers: Mapping[str, Sequence[str | bytes]]) -> None:
            given = headers.get(AUTHORIZATION, [])
            sent = given[0] if len(given) == 1 else b""
            sent = sent.encode() if isinstance(sent, str) else sent
            if not hmac.compare_digest(hashlib.sha256(sent).digest(), digest):
                raise flight.FlightUnauthenticatedError("the token is missing or wrong")

    return TokenCheck()
