"""One serving process: bound socket, uvicorn, signals, exit code.

The socket is bound before anything is loaded, so a taken port is found at once. SIGTERM or SIGINT
drains: /ready turns 503, new work is refused, running requests finish; a second signal forces.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import sys
import time
from enum import IntEnum
from types import FrameType

import uvicorn
from fastapi import FastAPI

from server.app import create_app
from server.config import Settings
from server.lifespan import stop
from server.logs import configure_logging
from server.protocol import guarded_protocol
from server.runtime import LoadBackend, Phase, Runtime

LOG = logging.getLogger("engram.lifecycle")
KEEP_ALIVE_S = 65  # longer than the idle timeout of common balancers
LAST_ANSWERS_S = 5.0  # for answers that are still being written when everything ends
DEATH_NOTICE_S = 1.0  # how long probes can see a dead engine before the process ends


class ExitCode(IntEnum):
    """What the process tells its supervisor."""

    CLEAN = 0
    LOAD_FAILED = 1
    USAGE = 2
    ENGINE_DIED = 3
    CANNOT_LISTEN = 4
    FORCED = 5


def bind(settings: Settings) -> socket.socket:
    """A listening socket on the configured address.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((settings.host, settings.port))
    except BaseException:
        sock.close()
        raise
    sock.listen(2048)
    sock.set_inheritable(False)
    return sock


class DrainingServer(uvicorn.Server):
    """uvicorn with our ending: drain first, then close."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._drain_until_s: float | None = None
        self._dead_since_s: float | None = None
        self._cancelled = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first drains, the second forces. Never re-raised at the end."""
        if self._drain_until_s is None:
            self._drain_until_s = time.monotonic() + self._runtime.settings.shutdown_timeout
            self._runtime.start_drain()
        else:
            self.force_exit = self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is time to end."""
        phase = self._runtime.phase
        if phase is Phase.FAILED:
            self.should_exit = True
        elif phase is Phase.DEAD:
            self.should_exit = self.should_exit or self._is_death_noticed()
        elif self._drain_until_s is not None and not self.should_exit:
            self.should_exit = await self._is_drained(self._drain_until_s)
        return await super().on_tick(counter)

    def _is_death_noticed(self) -> bool:
        now_s = time.monotonic()
        self._dead_since_s = self._dead_since_s or now_s
        age_s = now_s - self._dead_since_s
        idle = self._runtime.admission.in_use == 0
        return age_s > LAST_ANSWERS_S or (idle and age_s > DEATH_NOTICE_S)

    async def _is_drained(self, until_s: float) -> bool:
        if self._runtime.admission.in_use == 0:
            return True
        now_s = time.monotonic()
        if now_s > until_s and not self._cancelled:
            self._cancelled = True
            LOG.warning("the shutdown timeout is over: what still runs is cancelled")
            await stop(self._runtime)
        return now_s > until_s + LAST_ANSWERS_S

    def exit_code(self) -> ExitCode:
        """How it ended."""
        codes = {Phase.FAILED: ExitCode.LOAD_FAILED, Phase.DEAD: ExitCode.ENGINE_DIED}
        ended_well = ExitCode.FORCED if self.force_exit else ExitCode.CLEAN
        return codes.get(self._runtime.phase, ended_well)


def make_server(app: FastAPI, settings: Settings) -> DrainingServer:
    """A configured server around an application, not yet running."""
    config = uvicorn.Config(
        app,
        http=guarded_protocol(
            settings.max_header_size, settings.header_timeout, settings.stream_stall_timeout
        ),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=settings.root_path,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(LAST_ANSWERS_S),
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
    return DrainingServer(config, app.state.runtime)


def run(settings: Settings, load: LoadBackend) -> int:
    """Serve until told to stop; returns the exit code.

    Raises:
        SettingsFileError: a file named by a setting cannot be used.
    """
    configure_logging(settings.log_format, settings.log_level)
    app = create_app(settings, load)
    runtime: Runtime = app.state.runtime
    try:
        sock = bind(settings)
    except OSError as error:
        return _say(ExitCode.CANNOT_LISTEN, f"cannot listen on {_address(settings)}: {error}")
    server = make_server(app, settings)
    try:
        server.config.load()
    except (OSError, ssl.SSLError) as error:
        return _say(ExitCode.USAGE, f"cannot use the TLS certificate or key: {error}")
    _announce(settings, sock)
    server.run(sockets=[sock])
    return _end(server, runtime)


def _announce(settings: Settings, sock: socket.socket) -> None:
    scheme = "https" if settings.ssl_certfile else "http"
    port = sock.getsockname()[1]
    LOG.info("listening on %s://%s:%d; loading the model", scheme, settings.host, port)
    if not settings.is_loopback and not settings.api_keys():
        LOG.warning("anybody who reaches %s may use this server: no API key is set", settings.host)


def _address(settings: Settings) -> str:
    return f"{settings.host}:{settings.port}"


def _end(server: DrainingServer, runtime: Runtime) -> int:
    code = server.exit_code()
    if code is ExitCode.LOAD_FAILED:
        _say(code, f"cannot serve: {runtime.failure}")
    elif code is ExitCode.ENGINE_DIED:
        _say(code, f"the engine died: {runtime.failure}")
    if _native_code_runs(runtime):  # it would not survive the interpreter's end
        sys.stderr.flush()
        os._exit(code)
    return code


def _native_code_runs(runtime: Runtime) -> bool:
    """Whether a thread still loads the model or is stuck in a step."""
    thread, status = runtime.load_thread, runtime.engine_status()
    return (thread is not None and thread.is_alive()) or (status is not None and status.alive)


def _say(code: ExitCode, sentence: str) -> ExitCode:
    sys.stderr.write(f"engram-server: {sentence}\n")
    return code
