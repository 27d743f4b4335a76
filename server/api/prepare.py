"""From a validated body to an engine request: defaults, tokens, and the model's limits."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from uuid import uuid4

from server.config import Settings
from server.engine.types import EngramParams, Request, SamplingParams
from server.runtime import Backend, Runtime
from server.wire.answers import AnswerForm
from server.wire.errors import never_fits, validation_error
from server.wire.schemas import DEFAULT_MAX_NEW_TOKENS, EngramOptions, GenerateParameters
from server.wire.validation import refuse_unsupported

SEED_BITS = 53  # a seed that the server picks survives a trip through JavaScript


@dataclass(frozen=True, slots=True)
class Job:
    """A request ready for the engine, and what its answer is to show."""

    request: Request
    form: AnswerForm
    prompt_chars: int
    tokenize_s: float


async def prepare(
    runtime: Runtime,
    prompt: str,
    parameters: GenerateParameters,
    arrival_s: float,
    isolation: str = "",
) -> Job:
    """Check, tokenise and measure a request; those of one `isolation` share computed prefixes.

    Raises:
        ApiError: 422 when it can never be served, 503 before the model is loaded.
    """
    backend, tokenizer = runtime.require_backend()
    _check_fields(parameters, len(prompt), runtime.settings)
    engram = _engram_params(parameters, backend)
    start_s = time.perf_counter()
    token_ids = await tokenizer.encode_in_thread(prompt)
    tokenize_s = time.perf_counter() - start_s
    runtime.metrics.record_tokenize(tokenize_s)
    token_ids = _truncated(token_ids, parameters.truncate)
    max_new_tokens = _answer_length(
        len(token_ids), parameters.max_new_tokens, backend.max_model_len
    )
    request = Request(
        id=uuid4().hex,
        prompt_token_ids=tuple(token_ids),
        sampling=_sampling_params(parameters, max_new_tokens),
        engram=engram,
        priority=parameters.priority or 0,
        isolation=isolation,
        arrival_s=arrival_s,
        queue_deadline_s=arrival_s + runtime.settings.queue_timeout,
        deadline_s=arrival_s + runtime.settings.request_timeout,
    )
    return Job(request, _form(parameters, prompt, engram), len(prompt), tokenize_s)


def _check_fields(parameters: GenerateParameters, num_chars: int, settings: Settings) -> None:
    unsupported = parameters.unsupported()
    if unsupported is not None:
        raise refuse_unsupported(unsupported)
    if num_chars > settings.max_prompt_chars:
        raise never_fits(
            f"`inputs` has {num_chars} characters; at most {settings.max_prompt_chars} are accepted"
        )


def _engram_params(parameters: GenerateParameters, backend: Backend) -> EngramParams:
    options = parameters.engram or EngramOptions()
    wants_memory = options.enabled or options.gate_scale is not None or parameters.engram_details
    if wants_memory and not backend.has_memory:
        raise validation_error("`parameters.engram`: this server runs without an Engram memory")
    return EngramParams(
        enabled=backend.has_memory and options.enabled is not False,
        gate_scale=1.0 if options.gate_scale is None else options.gate_scale,
        per_token=bool(parameters.engram_details),
    )


def _truncated(token_ids: list[int], limit: int | None) -> list[int]:
    """The last `limit` tokens, as text-generation-inference keeps them."""
    if not token_ids:
        raise validation_error("`inputs` has no tokens")
    return token_ids if limit is None else token_ids[-limit:]


def _answer_length(num_prompt: int, asked: int | None, max_model_len: int) -> int:
    """The answer's limit in tokens; without one, the default or what is left of the model's."""
    if num_prompt >= max_model_len:
        raise never_fits(
            f"`inputs` has {num_prompt} tokens; together with an answer of at least one token "
            f"at most {max_model_len} are accepted"
        )
    if asked is None:
        return min(DEFAULT_MAX_NEW_TOKENS, max_model_len - num_prompt)
    if num_prompt + asked > max_model_len:
        raise never_fits(
            f"`inputs` has {num_prompt} tokens and `parameters.max_new_tokens` is {asked}: "
            f"{num_prompt + asked} together; at most {max_model_len} are accepted"
        )
    return asked


def _sampling_params(parameters: GenerateParameters, max_new_tokens: int) -> SamplingParams:
    p = parameters
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        do_sample=p.samples,
        temperature=1.0 if p.temperature is None else p.temperature,
        top_k=p.top_k,
        top_p=p.top_p,
        typical_p=p.typical_p,
        min_p=p.min_p,
        repetition_penalty=1.0 if p.repetition_penalty is None else p.repetition_penalty,
        frequency_penalty=p.frequency_penalty or 0.0,
        seed=secrets.randbits(SEED_BITS) if p.seed is None else p.seed,
        stop=tuple(p.stop or ()),
        include_stop_str_in_output=bool(p.include_stop_str_in_output),
        ignore_eos=bool(p.ignore_eos),
        top_n_tokens=p.top_n_tokens or 0,
        prompt_logprobs=bool(p.decoder_input_details),
    )


def _form(parameters: GenerateParameters, prompt: str, engram: EngramParams) -> AnswerForm:
    return AnswerForm(
        details=bool(parameters.details),
        prompt_tokens=bool(parameters.decoder_input_details),
        top_tokens=bool(parameters.top_n_tokens),
        prefix=prompt if parameters.return_full_text else "",
        engram=engram,
    )
