"""What the engine refuses at the door, and with which words. No torch here."""

from __future__ import annotations

from server.engine.limits import EngineLimits
from server.engine.types import PromptTooLongError, QueueFullError, Request, SubmitError


def refuse_impossible(
    request: Request, limits: EngineLimits, capacity_tokens: int, num_ids: int
) -> None:
    """Refuse what can never run.

    Raises:
        PromptTooLongError: prompt and new tokens exceed the model or the whole KV cache.
        SubmitError: an empty prompt, an unknown token id or a negative number of new tokens.
    """
    prompt, new = len(request.prompt_token_ids), request.sampling.max_new_tokens
    if prompt == 0:
        raise SubmitError("the prompt is empty; at least one token is needed")
    if new < 0:
        raise SubmitError(f"max_new_tokens is {new}; accepted: a number >= 0")
    if min(request.prompt_token_ids) < 0 or max(request.prompt_token_ids) >= num_ids:
        raise SubmitError(f"the prompt has a token id outside the tokenizer's 0 to {num_ids - 1}")
    for limit, what in ((limits.max_model_len, "max_model_len"), (capacity_tokens, "KV cache")):
        # one place more than a prompt alone needs: admission reserves the next token's
        if prompt + max(new, 1) > limit:
            raise PromptTooLongError(
                f"the prompt has {prompt} tokens and max_new_tokens is {new}, together "
                f"{prompt + new}; accepted: at most {limit} ({what})"
            )


def refuse_full(num_tokens: int, waiting: int, waiting_tokens: int, limits: EngineLimits) -> None:
    """Refuse a request of ``num_tokens`` while the queue is full. Raises QueueFullError."""
    if waiting >= limits.max_queue_len:
        raise QueueFullError(
            f"{waiting} requests are waiting; accepted: at most {limits.max_queue_len}"
        )
    if waiting_tokens + num_tokens > limits.queued_tokens_limit:
        raise QueueFullError(
            f"{waiting_tokens} tokens are waiting and this prompt has {num_tokens}; "
            f"accepted: at most {limits.queued_tokens_limit} together"
        )
