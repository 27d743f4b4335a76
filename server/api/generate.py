"""The native routes: /generate, /generate_stream, and / where `stream` picks between them."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from server.api.prepare import Job, prepare
from server.engine.types import (
    EngineClosedError,
    FinishEvent,
    PromptTooLongError,
    QueueFullError,
    SubmitError,
    TokenEvent,
)
from server.generation import Generation
from server.middleware import RequestContext, context_of
from server.runtime import Runtime
from server.streaming import EventStream, FrameWriter, collect
from server.wire.answers import dump, generate_answer, stream_frame
from server.wire.errors import (
    ApiError,
    error_body,
    never_fits,
    overloaded,
    unavailable,
    validation_error,
)
from server.wire.schemas import GenerateParameters, GenerateRequest
from server.wire.timing import TimingContext, answer_headers, stream_headers
from server.wire.validation import parse_body

router = APIRouter()
WORK_ROUTES = frozenset({"/", "/generate", "/generate_stream"})

_, _DEFINITIONS = models_json_schema(
    [(GenerateRequest, "validation")], ref_template="#/components/schemas/{model}"
)
BODY_SCHEMAS: dict[str, Any] = _DEFINITIONS["$defs"]
_REFERENCE = {"$ref": "#/components/schemas/GenerateRequest"}
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _REFERENCE}}}
}


@router.post("/generate", openapi_extra=_BODY, summary="Generate, and answer once")
async def generate(request: Request) -> Response:
    """Generate a text; the answer is complete."""
    body = await _read(request)
    if body.stream:
        raise validation_error("`stream` must be false on /generate; use /generate_stream")
    return await _answer(request, body, as_list=False)


@router.post("/generate_stream", openapi_extra=_BODY, summary="Generate, and stream the tokens")
async def generate_stream(request: Request) -> Response:
    """Generate a text; every token is a server-sent event."""
    body = await _read(request)
    if body.stream is False:
        raise validation_error("`stream` must be true on /generate_stream; use /generate")
    return await _stream(request, body)


@router.post("/", openapi_extra=_BODY, summary="Generate; `stream` chooses the form")
async def compat(request: Request) -> Response:
    """Generate a text; a complete answer is a list of one."""
    body = await _read(request)
    if body.stream:
        return await _stream(request, body)
    return await _answer(request, body, as_list=True)


async def _read(request: Request) -> GenerateRequest:
    return parse_body(GenerateRequest, await request.body())


def _parameters(body: GenerateRequest) -> GenerateParameters:
    try:
        return body.settled_parameters
    except ValueError as error:
        raise validation_error(str(error)) from None


async def _prepare(
    runtime: Runtime, context: RequestContext, prompt: str, parameters: GenerateParameters
) -> Job:
    """The job of a request; its computed prefixes serve the holders of its key only."""
    return await prepare(runtime, prompt, parameters, context.arrival_s, context.key_digest)


async def _answer(request: Request, body: GenerateRequest, *, as_list: bool) -> Response:
    runtime: Runtime = request.app.state.runtime
    context = context_of(request.scope)
    parameters = _parameters(body)
    job = await _prepare(runtime, context, body.inputs, parameters)
    _note_job(context, job)
    with _submit(runtime, job) as generation:
        done = await collect(generation, request.receive)
    _note_finish(context, done.finish)
    answer = generate_answer(done.tokens, done.finish, job.form)
    headers = answer_headers(done.finish, _timing(runtime, context, job))
    content = dump([answer] if as_list else answer)
    return Response(content, headers=headers, media_type="application/json")


async def _stream(request: Request, body: GenerateRequest) -> Response:
    runtime: Runtime = request.app.state.runtime
    context = context_of(request.scope)
    parameters = _parameters(body)
    if parameters.decoder_input_details:
        raise validation_error("`parameters.decoder_input_details` must be false for a stream")
    job = await _prepare(runtime, context, body.inputs, parameters)
    _note_job(context, job)
    writer, headers = _frame_writer(context, job), stream_headers(_timing(runtime, context, job))
    return EventStream(
        _submit(runtime, job),
        writer,
        headers,
        runtime.settings.stream_stall_timeout,
        lambda error: _note_failure(runtime, context, error),
    )


def _frame_writer(context: RequestContext, job: Job) -> FrameWriter:
    def frame(event: TokenEvent, finish: FinishEvent | None) -> bytes:
        if finish is not None:
            _note_finish(context, finish)
        return dump(stream_frame(event, job.form, finish))

    return FrameWriter(frame, lambda error: error_body(error.message, error.error_type))


def _submit(runtime: Runtime, job: Job) -> Generation:
    try:
        return runtime.submit(job.request)
    except SubmitError as error:
        raise _refusal(error) from error


def _refusal(error: SubmitError) -> ApiError:
    if isinstance(error, QueueFullError):
        return overloaded("the queue is full; try again later")
    if isinstance(error, PromptTooLongError):
        return never_fits(str(error))
    if isinstance(error, EngineClosedError):
        return unavailable("the engine accepts no requests")
    return validation_error("the engine refused the request")


def _timing(runtime: Runtime, context: RequestContext, job: Job) -> TimingContext:
    backend, _ = runtime.require_backend()
    return TimingContext(
        compute_type=backend.device,
        prompt_chars=job.prompt_chars,
        tokenize_s=job.tokenize_s,
        total_s=time.monotonic() - context.arrival_s,
    )


def _note_job(context: RequestContext, job: Job) -> None:
    context.facts["prompt_tokens"] = len(job.request.prompt_token_ids)
    context.facts["tokenize_s"] = round(job.tokenize_s, 4)


def _note_finish(context: RequestContext, finish: FinishEvent) -> None:
    timings = finish.timings
    context.facts.update(
        cached_tokens=finish.cached_tokens,
        generated_tokens=finish.generated_tokens,
        finish_reason=finish.finish_reason,
        queue_s=round(timings.queue_s, 4),
        prefill_s=round(timings.prefill_s, 4),
        decode_s=round(timings.decode_s, 4),
    )


def _note_failure(runtime: Runtime, context: RequestContext, error: ApiError) -> None:
    """A failure that was told in a frame, so that no middleware sees it."""
    context.facts["failure"] = error.error_type
    runtime.metrics.record_failure(error.error_type)
