"""Answers of the native routes, built from what the engine reports.

The shapes are text-generation-inference's, plus `engram`. Pure functions: events in, plain data
out; every number is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from server.engine.types import (
    EngramParams,
    FinishEvent,
    LayerUsage,
    TokenEvent,
    TokenLogprob,
    TokenMemory,
)

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the request asked to see."""

    details: bool = False
    prompt_tokens: bool = False
    top_tokens: bool = False
    prefix: str = ""  # the prompt, where the whole text is to be returned
    engram: EngramParams = field(default_factory=EngramParams)


def dump(data: Any) -> bytes:
    """JSON; a float that is not finite would become null, so none may reach this."""
    return orjson.dumps(data)


def finite(logprob: float | None) -> float | None:
    """A log-probability that JSON can carry."""
    if logprob is None:
        return None
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


def token_dict(token: TokenLogprob, text: str | None = None) -> dict[str, Any]:
    """One generated token; `text` replaces its own where only a part may be shown."""
    return {
        "id": token.id,
        "text": token.text if text is None else text,
        "logprob": finite(token.logprob),
        "special": token.special,
    }


def prompt_token_dict(token: TokenLogprob) -> dict[str, Any]:
    """One prompt token; the first has no log-probability."""
    return {"id": token.id, "text": token.text, "logprob": finite(token.logprob)}


def generate_answer(
    tokens: Sequence[TokenEvent], finish: FinishEvent, form: AnswerForm
) -> dict[str, Any]:
    """The answer of /generate."""
    answer: dict[str, Any] = {"generated_text": form.prefix + finish.text}
    if form.details:
        answer["details"] = _details(tokens, finish, form)
    return answer


def _details(tokens: Sequence[TokenEvent], finish: FinishEvent, form: AnswerForm) -> dict[str, Any]:
    details: dict[str, Any] = {
        "finish_reason": finish.finish_reason,
        "generated_tokens": finish.generated_tokens,
        "seed": finish.seed,
        "cached_tokens": finish.cached_tokens,
        "prefill": [prompt_token_dict(t) for t in finish.prefill] if form.prompt_tokens else [],
        "tokens": [token_dict(event.token) for event in tokens],
    }
    if form.top_tokens:
        details["top_tokens"] = [[token_dict(t) for t in e.top_tokens] for e in tokens]
    details["engram"] = engram_dict(finish.engram, form.engram)
    if form.engram.per_token:
        details["engram"]["tokens"] = [
            {"index": e.index, "layers": memory_dicts(e.memory)} for e in tokens
        ]
    return details


def engram_dict(layers: Iterable[LayerUsage], asked: EngramParams) -> dict[str, Any]:
    """What the memory did for a request, layer by layer."""
    return {
        "enabled": asked.enabled,
        "gate_scale": asked.gate_scale,
        "layers": [_layer_dict(usage) for usage in layers],
    }


def _layer_dict(usage: LayerUsage) -> dict[str, Any]:
    mean = usage.gate_sum / usage.gate_count if usage.gate_count else None
    return {
        "layer": usage.layer,
        "lookup_ms": milliseconds(usage.lookup_s),
        "wait_ms": milliseconds(usage.wait_s),
        "rows": usage.rows,
        "unique_rows": usage.unique_rows,
        "rows_by_tier": dict(usage.rows_by_tier),
        "mean_gate": mean if mean is None or math.isfinite(mean) else None,
    }


def memory_dicts(memory: Iterable[TokenMemory]) -> list[dict[str, Any]]:
    """The memory's part in one token, for `engram_details`."""
    return [
        {
            "layer": m.layer,
            "gate": m.gate if math.isfinite(m.gate) else None,
            "ngram": m.ngram,
            "row_ids": list(m.row_ids),
            "tiers": list(m.tiers),
        }
        for m in memory
    ]


def stream_frame(
    event: TokenEvent, form: AnswerForm, finish: FinishEvent | None = None
) -> dict[str, Any]:
    """One frame of a stream; the last one carries the whole text and the details."""
    tail = finish.text_tail if finish else ""
    frame: dict[str, Any] = {
        "index": event.index,
        "token": token_dict(event.token, event.text_delta + tail),
    }
    if form.top_tokens:
        frame["top_tokens"] = [token_dict(token) for token in event.top_tokens]
    frame["generated_text"] = form.prefix + finish.text if finish else None
    frame["details"] = _stream_details(finish, form) if finish and form.details else None
    if form.engram.per_token:
        frame["engram"] = memory_dicts(event.memory)
    return frame


def _stream_details(finish: FinishEvent, form: AnswerForm) -> dict[str, Any]:
    return {
        "finish_reason": finish.finish_reason,
        "generated_tokens": finish.generated_tokens,
        "seed": finish.seed,
        "cached_tokens": finish.cached_tokens,
        "input_length": finish.prompt_tokens,
        "engram": engram_dict(finish.engram, form.engram),
    }


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds, to the microsecond."""
    return round(seconds * 1e3, 3)
