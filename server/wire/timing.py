"""Where the time went, as response headers: text-generation-inference's x-* and Server-Timing."""

from __future__ import annotations

from dataclasses import dataclass

from server.engine.types import FinishEvent
from server.wire.answers import milliseconds


@dataclass(frozen=True, slots=True)
class TimingContext:
    """What the HTTP side measured itself, in seconds."""

    compute_type: str  # the device
    prompt_chars: int
    tokenize_s: float
    total_s: float


def stream_headers(context: TimingContext) -> dict[str, str]:
    """Headers of a stream: what is known before its first token."""
    return {
        "x-compute-type": context.compute_type,
        "x-compute-characters": str(context.prompt_chars),
        "x-accel-buffering": "no",
        "cache-control": "no-cache",
        "server-timing": f"tokenize;dur={milliseconds(context.tokenize_s)}",
    }


def answer_headers(finish: FinishEvent, context: TimingContext) -> dict[str, str]:
    """Headers of a complete answer; the x-* times are whole milliseconds, as TGI sends them."""
    timings = finish.timings
    inference_s = timings.prefill_s + timings.decode_s
    per_token_s = inference_s / max(finish.generated_tokens, 1)
    return {
        "x-compute-type": context.compute_type,
        "x-compute-time": f"{context.total_s:.6f}",
        "x-compute-characters": str(context.prompt_chars),
        "x-total-time": _whole_ms(context.total_s),
        "x-validation-time": _whole_ms(context.tokenize_s),
        "x-queue-time": _whole_ms(timings.queue_s),
        "x-inference-time": _whole_ms(inference_s),
        "x-time-per-token": _whole_ms(per_token_s),
        "x-prompt-tokens": str(finish.prompt_tokens),
        "x-cached-tokens": str(finish.cached_tokens),
        "x-generated-tokens": str(finish.generated_tokens),
        "server-timing": server_timing(finish, context),
    }


def server_timing(finish: FinishEvent, context: TimingContext) -> str:
    """The Server-Timing header: every phase, and the memory's lookups and exposed waits."""
    parts = {
        "tokenize": context.tokenize_s,
        "queue": finish.timings.queue_s,
        "prefill": finish.timings.prefill_s,
        "decode": finish.timings.decode_s,
        "engram-lookup": sum(usage.lookup_s for usage in finish.engram),
        "engram-wait": sum(usage.wait_s for usage in finish.engram),
        "total": context.total_s,
    }
    return ", ".join(f"{name};dur={milliseconds(value)}" for name, value in parts.items())


def _whole_ms(seconds: float) -> str:
    return str(max(0, round(seconds * 1e3)))
