"""From settings to a serving engine and back: loads in a thread, watches, stops.

The listener is already open while this runs: probes are answered during loading. Knows nothing
about signals or exit codes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from fastapi import FastAPI

from engram_core.errors import EngramError
from server.load_errors import LoadError
from server.runtime import Backend, LoadBackend, Runtime

LOG = logging.getLogger("engram.lifecycle")
WATCH_INTERVAL_S = 0.2

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def make_lifespan(runtime: Runtime, load: LoadBackend) -> Lifespan:
    """The lifespan of an application around `runtime`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        start_loading(runtime, load)
        watch = asyncio.create_task(_watch(runtime))
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await stop(runtime)

    return lifespan


def start_loading(runtime: Runtime, load: LoadBackend) -> threading.Thread:
    """Load in a daemon thread; the outcome is delivered to the event loop."""
    loop = asyncio.get_running_loop()

    def deliver(outcome: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server stopped while loading
            loop.call_soon_threadsafe(outcome)

    def run() -> None:
        try:
            backend = load(runtime.settings, runtime.metrics, runtime.set_progress)
        except BaseException as error:  # noqa: BLE001 - whatever it was, the operator is told
            message = load_failure(error)
            deliver(lambda: runtime.fail_loading(message))
        else:
            deliver(lambda: _serve(runtime, backend))

    thread = threading.Thread(target=run, name="load", daemon=True)
    runtime.load_thread = thread
    thread.start()
    return thread


def load_failure(error: BaseException) -> str:
    """One sentence for the operator; unexpected errors also leave a traceback in the log."""
    if not isinstance(error, LoadError | EngramError | OSError | ValueError):
        LOG.error("loading failed unexpectedly", exc_info=error)
    first_line = (str(error).strip().splitlines() or [""])[0]
    return first_line or type(error).__name__


def _serve(runtime: Runtime, backend: Backend) -> None:
    """Start a loaded engine and open the doors."""
    metrics = runtime.metrics
    metrics.record_load(backend.load_s)
    backend.engine.start()
    runtime.set_ready(backend)
    runtime.describe_memory()
    LOG.info("ready", extra={"facts": {"device": backend.device, "memory": backend.memory_id}})
    prefetch = backend.engram_info.get("prefetch")
    if prefetch is not None:
        LOG.info("tables %s", backend.engram_info["why_tiers"])
        LOG.info("orders %s", backend.engram_info["why_orders"])
        LOG.info("prefetch %s", prefetch["why"])
    LOG.info("decode %s", backend.engine.status().decode_path)


async def _watch(runtime: Runtime) -> None:
    """Notice a dead engine even when it could not say so itself."""
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        if not runtime.check_engine():
            LOG.error("the engine died: %s", runtime.failure)
            return


async def stop(runtime: Runtime) -> None:
    """Stop the engine now, off the event loop; what still runs is answered as cancelled."""
    backend = runtime.backend
    if backend is None or runtime.stopped:
        return
    runtime.stopped = True
    backend.engine.drain()
    await asyncio.to_thread(backend.engine.stop, 0.0)
    await asyncio.to_thread(backend.close)  # it may write files
    if runtime.tokenizer is not None:
        runtime.tokenizer.close()
