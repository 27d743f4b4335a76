"""What operators and probes ask: /health, /ready, /version, /info, /metrics."""

from __future__ import annotations

import platform
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from server import __version__
from server.runtime import Backend, Phase, Runtime
from server.wire.answers import dump
from server.wire.errors import RETRY_AFTER_S
from server.wire.schemas import MAX_STOP_SEQUENCES, MAX_TOP_N_TOKENS

router = APIRouter()
PUBLIC_ROUTES = frozenset({"/health", "/ready"})


def _json(data: Any, status: int = 200) -> Response:
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else None
    return Response(dump(data), status_code=status, headers=headers, media_type="application/json")


@router.head("/health", include_in_schema=False)
@router.get("/health", summary="Whether the process should go on living")
async def health(request: Request) -> Response:
    """200 while the server loads, serves or drains; 503 once it cannot serve any more."""
    runtime: Runtime = request.app.state.runtime
    is_live = runtime.phase not in (Phase.FAILED, Phase.DEAD) and runtime.check_engine()
    return _json({"status": "ok" if is_live else runtime.phase.value}, 200 if is_live else 503)


@router.head("/ready", include_in_schema=False)
@router.get("/ready", summary="Whether a request sent now would be served")
async def ready(request: Request) -> Response:
    """200, or 503 with the reason; while loading also the phase and how far it is."""
    runtime: Runtime = request.app.state.runtime
    runtime.check_engine()
    reason = runtime.unready_reason()
    if reason is None:
        return _json({"status": "ready"})
    answer: dict[str, Any] = {"status": reason}
    if runtime.phase is Phase.LOADING:
        answer |= {"phase": runtime.load_phase, "fraction": round(runtime.load_fraction, 4)}
    return _json(answer, 503)


@router.get("/version", summary="Versions")
async def version() -> Response:
    """The server's version and Python's."""
    return _json({"version": __version__, "python": platform.python_version()})


@router.get("/info", summary="What is served, and its limits")
async def info(request: Request) -> Response:
    """Model, device, limits and memory; the fields that TGI has are named as there."""
    runtime: Runtime = request.app.state.runtime
    answer = {**_settings_info(runtime), "status": runtime.unready_reason() or "ready"}
    if runtime.backend is not None:
        answer |= _backend_info(runtime.backend)
    return _json(answer)


def _settings_info(runtime: Runtime) -> dict[str, Any]:
    settings = runtime.settings
    return {
        "model_id": runtime.model_name,
        "version": __version__,
        "max_concurrent_requests": runtime.admission.limit,
        "max_best_of": 1,
        "max_stop_sequences": MAX_STOP_SEQUENCES,
        "max_top_n_tokens": MAX_TOP_N_TOKENS,
        "max_batch_size": settings.max_num_seqs,
        "max_batched_tokens": settings.max_num_batched_tokens,
        "max_queue_len": settings.max_queue_len,
        "max_body_bytes": settings.max_body_size,
        "max_prompt_chars": settings.max_prompt_chars,
    }


def _backend_info(backend: Backend) -> dict[str, Any]:
    return {
        "model_dtype": backend.dtype,
        "model_device_type": backend.device,
        "max_input_tokens": backend.max_model_len - 1,
        "max_total_tokens": backend.max_model_len,
        "model": {**backend.model_info, "decode_path": backend.engine.status().decode_path},
        "engram": {"enabled": backend.has_memory, **backend.engram_info},
        "load_s": {phase: round(value, 3) for phase, value in backend.load_s.items()},
    }


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    """All metrics, as text or as OpenMetrics, whichever is asked for."""
    runtime: Runtime = request.app.state.runtime
    body, content_type = runtime.metrics.render(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})
