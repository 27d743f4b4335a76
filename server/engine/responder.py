"""Responder: turns chosen tokens into events, and decides when a request is complete.

Knows the tokenizer and one sequence at a time; nothing about batches or the memory.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many
from typing import Any

from tokenizers import Tokenizer

from server.engine.detokenizer import Detokenizer
from server.engine.sampler import Choice
from server.engine.sequence import Sequence
from server.engine.stopping import StopMatcher
from server.engine.text_stream import TextStream
from server.engine.types import (
    FinishEvent,
    FinishReason,
    Request,
    Timings,
    TokenEvent,
    TokenLogprob,
    TokenMemory,
)


class Responder:
    """Text and events of the requests of one tokenizer.

    Args:
        tokenizer: a fast tokenizer of transformers.
        eos_ids: tokens that end a text.
    """

    def __init__(self, tokenizer: Any, eos_ids: Collection[int]) -> None:
        # the tokenizers object underneath decodes without transformers' own overhead
        self._decoder: Tokenizer = tokenizer.backend_tokenizer
        self._eos_ids = frozenset(eos_ids)
        self._special_ids = frozenset(tokenizer.all_special_ids) | self._eos_ids

    def open_text(self, request: Request) -> TextStream:
        """The text of a new request."""
        params = request.sampling
        return TextStream(
            Detokenizer(self._decoder, request.prompt_token_ids),
            StopMatcher(params.stop, keep_stop=params.include_stop_str_in_output),
        )

    def decode(self, token_ids: Many[int]) -> str:
        """The text of tokens on their own, special ones included."""
        text: str = self._decoder.decode(list(token_ids), skip_special_tokens=False)
        return text

    def token(self, token_id: int, logprob: float | None) -> TokenLogprob:
        """A token described on its own."""
        is_special = token_id in self._special_ids
        return TokenLogprob(token_id, self.decode([token_id]), logprob, is_special)

    def ends_by_token(self, sequence: Sequence) -> FinishReason | None:
        """Whether the newest token ends the request, whatever its text is."""
        params = sequence.request.sampling
        if sequence.token_ids[-1] in self._eos_ids and not params.ignore_eos:
            return "eos_token"
        return "length" if sequence.num_generated >= params.max_new_tokens else None

    def token_event(
        self, sequence: Sequence, choice: Choice, memory: tuple[TokenMemory, ...] = ()
    ) -> TokenEvent:
        """The event of the newest token, which `choice` chose; feeds the request's text."""
        own_text, delta = self._push(sequence, choice.token_id)
        is_special = choice.token_id in self._special_ids
        if is_special:
            own_text = self.decode([choice.token_id])
        top = zip(choice.top_ids, choice.top_logprobs, strict=True)
        return TokenEvent(
            index=sequence.num_generated,
            token=TokenLogprob(choice.token_id, own_text, choice.logprob, is_special),
            text_delta=delta,
            top_tokens=tuple(self.token(token_id, logprob) for token_id, logprob in top),
            memory=memory,
        )

    def _push(self, sequence: Sequence, token_id: int) -> tuple[str, str]:
        text: TextStream = sequence.text
        if self.ends_by_token(sequence) == "eos_token":
            return "", ""  # the end itself is no text, special token or not
        return text.push(token_id)

    def finish_event(self, sequence: Sequence, reason: FinishReason, now_s: float) -> FinishEvent:
        """The last event; gives out the text that was held back."""
        text: TextStream = sequence.text
        tail = text.finish()
        params = sequence.request.sampling
        return FinishEvent(
            finish_reason=reason,
            text=text.text,
            text_tail=tail,
            prompt_tokens=sequence.num_prompt_tokens,
            generated_tokens=sequence.num_generated,
            seed=params.seed if params.do_sample else None,
            timings=timings(sequence, now_s),
            prefill=tuple(sequence.prompt_logprobs),
            engram=tuple(sequence.usage[layer] for layer in sorted(sequence.usage)),
            cached_tokens=sequence.num_cached,
        )


def timings(sequence: Sequence, now_s: float) -> Timings:
    """Where the request's time went until ``now_s``."""
    scheduled_s = now_s if sequence.first_scheduled_s is None else sequence.first_scheduled_s
    first_token_s = now_s if sequence.first_token_s is None else sequence.first_token_s
    return Timings(
        queue_s=max(0.0, scheduled_s - sequence.arrival_s),
        prefill_s=max(0.0, first_token_s - scheduled_s),
        decode_s=max(0.0, now_s - first_token_s),
    )
