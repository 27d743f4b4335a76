"""EngineLimits: how much the engine takes on at once.

Knows nothing about models or tensors; the numbers arrive validated by the settings, and are
checked here again only where they contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from engram_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Upper bounds of the engine; every one is refused at the door, none is clamped.

    Attributes:
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens of one step, decode and prefill together.
        max_model_len: prompt plus generated tokens of one request.
        max_queue_len: requests that may wait.
        max_queued_tokens: prompt tokens that may wait; None means ``max_queue_len`` full prompts.
        kv_cache_bytes: memory for keys and values; None means what ``max_num_seqs`` sequences of
            ``max_model_len`` tokens need.
        free_memory_bytes: what the device has left for keys and values; None: not known.
        block_size: tokens of one KV block.
        max_prompt_logprob_rows: prompt positions whose log-probabilities one step computes;
            bounds the logits it holds.
        max_decode_slowdown: how many times longer a step may take for the sake of prompts while
            sequences generate; None: no bound but ``max_num_batched_tokens``.
        prefix_cache: whether a sequence may start with what another one has computed.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_len: int = 2048
    max_queue_len: int = 128
    max_queued_tokens: int | None = None
    kv_cache_bytes: int | None = None
    free_memory_bytes: int | None = None
    block_size: int = 32
    max_prompt_logprob_rows: int = 128
    max_decode_slowdown: float | None = None
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_model_len", "max_queue_len", "block_size"):
            _check_positive(name, getattr(self, name))
        if self.kv_cache_bytes is not None:
            _check_positive("kv_cache_bytes", self.kv_cache_bytes)
        _check_positive("max_prompt_logprob_rows", self.max_prompt_logprob_rows)
        if self.max_decode_slowdown is not None and not self.max_decode_slowdown > 1:
            raise ConfigError(
                f"max_decode_slowdown is {self.max_decode_slowdown}; accepted: a number > 1"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; accepted: at least "
                f"max_num_seqs ({self.max_num_seqs}), one token of every running sequence"
            )

    @property
    def queued_tokens_limit(self) -> int:
        """The bound on waiting prompt tokens."""
        if self.max_queued_tokens is None:
            return self.max_queue_len * self.max_model_len
        return self.max_queued_tokens


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}; accepted: a number >= 1")
