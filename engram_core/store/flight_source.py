"""FlightRowSource: asks one row server for rows over Apache Arrow Flight.

Every call carries its own deadline, which gRPC keeps while connecting and reading too. Knows no
retries and no other servers.
"""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import numpy as np

from engram_core.errors import (
    ConfigError,
    TierError,
    TierRefusedError,
    TierTimeoutError,
    TierUnreachableError,
)
from engram_core.store.base import RowIds
from engram_core.store.flight import (
    AUTHORIZATION,
    DESCRIBE,
    MAX_ROWS_PER_CALL,
    RowTicket,
    check_token,
    decode_description,
    import_arrow,
)
from engram_core.store.row_source import RowSourceDescription, RowWords

_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_CHANNEL = [
    # a proxy in the environment is for the internet, not for a private network
    ("grpc.enable_http_proxy", 0),
    # else a new client shares the old one's connection, and its pause before it tries again
    ("grpc.use_local_subchannel_pool", 1),
]


class FlightRowSource:
    """The rows of one row server. Connects when it is first asked; thread-safe.

    Args:
        address: ``"host:port"``, an IPv6 address in brackets.
        memory: content id of the memory that the server has to serve.
        token: the server's shared token, if it wants one.

    Attributes:
        address: as given.

    Raises:
        ConfigError: an argument is malformed, or pyarrow is not installed.
    """

    def __init__(self, address: str, memory: str, *, token: str | None = None) -> None:
        found = _ADDRESS.fullmatch(address)
        if found is None or not 0 < int(found[2]) < 65536:
            raise ConfigError(f"the row server's address is {address!r}; accepted: HOST:PORT")
        self.address, self.name = address, f"row server {address}"
        self._arrow = import_arrow()
        self._uri, self._memory = f"grpc://{address}", memory
        self._headers = [(AUTHORIZATION.encode(), check_token(token))] if token is not None else []
        self._lock = threading.Lock()
        self._client: Any = None

    def describe(self, timeout_s: float) -> RowSourceDescription:
        """What the server has (see `RowSource.describe`)."""
        client = self._connected()
        try:
            results = list(client.do_action(DESCRIBE, self._options(timeout_s)))
        except (self._arrow.arrow.ArrowException, OSError) as error:
            raise self._failure(error, client, timeout_s) from None
        text = results[0].body.to_pybytes() if len(results) == 1 else b""
        return decode_description(text, self.name)

    def read_rows(self, table: str, row_ids: RowIds, timeout_s: float) -> RowWords:
        """The rows ``[n, row_dim]`` (see `RowSource.read_rows`); many are several calls."""
        deadline_s = time.monotonic() + timeout_s
        parts = []
        for start in range(0, max(1, row_ids.size), MAX_ROWS_PER_CALL):
            ticket = RowTicket(self._memory, table, row_ids[start : start + MAX_ROWS_PER_CALL])
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise self._too_late(timeout_s)
            parts.append(self._read(ticket, left_s, timeout_s))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _read(self, ticket: RowTicket, left_s: float, timeout_s: float) -> RowWords:
        client = self._connected()
        try:
            flight_ticket = self._arrow.flight.Ticket(ticket.encode())
            answer = client.do_get(flight_ticket, self._options(left_s)).read_all()
        except (self._arrow.arrow.ArrowException, OSError) as error:
            raise self._failure(error, client, timeout_s) from None
        words = _words(self._arrow.arrow, answer)
        if words is None or len(words) != ticket.row_ids.size:
            raise TierRefusedError(f"{self.name} answered with something else than the rows")
        return words

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                flight = self._arrow.flight
                self._client = flight.FlightClient(self._uri, generic_options=_CHANNEL)
            return self._client

    def _options(self, timeout_s: float) -> Any:
        return self._arrow.flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    def _failure(self, error: Exception, client: Any, timeout_s: float) -> TierError:
        """Our error for one of pyarrow's, whose texts are long and name the peer's files."""
        flight = self._arrow.flight
        if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
            return TierRefusedError(f"{self.name} does not accept the token")
        if isinstance(error, flight.FlightServerError) and error.extra_info:
            sentence = error.extra_info.decode(errors="replace")[:500]
            return TierRefusedError(f"{self.name} refuses: {sentence}")
        self._forget(client)
        if isinstance(error, flight.FlightTimedOutError):
            return self._too_late(timeout_s)
        if isinstance(error, flight.FlightUnavailableError | OSError):
            return TierUnreachableError(f"{self.name} cannot be reached")
        return TierUnreachableError(f"{self.name} broke off ({type(error).__name__})")

    def _too_late(self, timeout_s: float) -> TierError:
        return TierTimeoutError(f"{self.name} did not answer within {timeout_s:.3g} s")

    def _forget(self, client: Any) -> None:
        """Connect anew for the next call: the old connection may be dead without knowing it.

        Calls that still run on it keep it; nobody closes it under them.
        """
        with self._lock:
            if self._client is client:
                self._client = None


def _words(arrow: Any, answer: Any) -> RowWords | None:
    """The rows of an answer ``[n, row_dim]``, not copied; None when it is no such answer."""
    kinds = answer.schema.types
    if len(kinds) != 1 or not arrow.types.is_fixed_size_binary(kinds[0]):
        return None
    num_bytes = int(kinds[0].byte_width)
    parts = [_chunk_words(chunk, num_bytes) for chunk in answer.column(0).chunks if len(chunk)]
    if num_bytes % 2 or not parts:
        return None if num_bytes % 2 else np.empty((0, num_bytes // 2), dtype=np.int16)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _chunk_words(chunk: Any, num_bytes: int) -> RowWords:
    start, count = chunk.offset * num_bytes, len(chunk) * num_bytes // 2
    words = np.frombuffer(chunk.buffers()[1], "<i2", count=count, offset=start)
    return words.reshape(len(chunk), num_bytes // 2)
