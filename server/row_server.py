"""One row server's process: the artefact, the listener, signals and the exit code.

Knows nothing of models and HTTP. What can go wrong is one sentence on stderr and an exit code.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from enum import IntEnum

from engram_core.errors import EngramError
from engram_core.row_shard import shard_of
from engram_core.store.flight import import_arrow
from engram_core.store.flight_server import FlightRowServer
from engram_core.store.local_rows import LocalRowSource
from engram_core.tables import open_table
from server.artefact_choice import find_artefact, is_native
from server.row_settings import RowServerSettings

CLOSE_TIMEOUT_S = 5.0


class RowServerExit(IntEnum):
    """What the process tells its supervisor; the numbers of `serve` where they mean the same."""

    CLEAN = 0
    LOAD_FAILED = 1
    CANNOT_LISTEN = 4
    FORCED = 5


def run(settings: RowServerSettings) -> int:
    """Serve rows until SIGTERM or SIGINT; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        import_arrow()  # before the tables are read
        _check_bindable(settings.host, settings.port)
        source = _open(settings)
        server = FlightRowServer(
            source, host=settings.host, port=settings.port, token=settings.token
        )
    except EngramError as error:
        return _say(RowServerExit.LOAD_FAILED, f"cannot serve rows: {error}")
    except OSError as error:
        place = f"{settings.host}:{settings.port}"
        reason = error.strerror or error
        return _say(RowServerExit.CANNOT_LISTEN, f"cannot listen on {place}: {reason}")
    _announce(settings, server, source)
    stop.wait()
    if not server.close(CLOSE_TIMEOUT_S):
        _say(RowServerExit.FORCED, "a reader keeps a call open; stopped without it")
        os._exit(RowServerExit.FORCED)  # an ordinary end would wait for that reader in gRPC
    return RowServerExit.CLEAN


def _open(settings: RowServerSettings) -> LocalRowSource:
    """The rows to serve, verified; what is not served is let go."""
    folder = find_artefact(settings.engram, settings.engram_dir)
    if folder is None:
        name = settings.engram.rstrip("/").rpartition("/")[2]
        raise EngramError(
            f"the Engram artefact {name[:100]!r} does not exist; accepted for --engram: an "
            "artefact's folder, or its name in --engram-dir or among the packaged ones"
        )
    if not is_native(folder):
        raise EngramError(
            f"{folder.name} is read in place, which only the process that computes can do; "
            "accepted: an artefact made of it (engram-server table convert)"
        )
    return shard_of(open_table(folder), settings.heads)


def _check_bindable(host: str, port: int) -> None:
    """Raise OSError where the port is taken: gRPC says so only after the tables are read."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _announce(settings: RowServerSettings, server: FlightRowServer, source: LocalRowSource) -> None:
    found = source.describe()
    heads = "all heads" if settings.heads is None else f"heads {settings.heads}"
    place = f"{settings.host}:{server.port}"
    tables = ", ".join(found.tables)
    is_local = settings.host in ("localhost", "::1") or settings.host.startswith("127.")
    if settings.token is None and not is_local:
        _say(0, f"warning: no token is set: whoever reaches {settings.host} may read these rows")
    print(f"rows of {tables} ({heads}, memory {found.memory}) on {place}", flush=True)


def _say(code: int, sentence: str) -> int:
    print(f"engram-server: {sentence}", file=sys.stderr)
    return code
