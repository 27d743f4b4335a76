"""Sequence: the state of one request inside the engine, as small properties.

`token_ids` is the history: prompt and committed tokens, the only source for hashing. No torch
here: convolution states and memory rows are opaque objects that the runner and the memory desk
put in and take out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.engine.types import EventSink, LayerUsage, Request, TokenLogprob


class Sequence:
    """One request on its way through the engine.

    Attributes:
        request: what was asked; never changes.
        sink: where its events go.
        token_ids: prompt and committed tokens, in order.
        num_computed: leading tokens whose keys and values are in the cache.
        block_table: KV blocks that hold them, in order.
        version: the memory version it holds from submission to its end (None: no memory).
        memory_rows: opaque handle of the rows asked for in advance.
        conv_states: opaque convolution states by layer, restarted after a preemption.
        snapshots: the same after fewer tokens, for others to go on from, by number of tokens.
        block_keys: keys of its first full blocks (`PrefixCache`); the tokens they name stay.
        num_kept_blocks: leading blocks that were offered to the prefix cache.
        num_cached: prompt tokens that it did not have to compute.
        num_overtaken: how often a later sequence was started before it.
        usage: what the memory did for it, by layer.
        text: its `TextStream`.
    """

    __slots__ = (
        "arrival_s",
        "block_keys",
        "block_table",
        "conv_states",
        "first_scheduled_s",
        "first_token_s",
        "inter_token_s",
        "is_ended",
        "last_token_s",
        "memory_rows",
        "num_cached",
        "num_computed",
        "num_kept_blocks",
        "num_overtaken",
        "num_preemptions",
        "prompt_logprobs",
        "request",
        "sink",
        "snapshots",
        "text",
        "token_ids",
        "usage",
        "version",
    )

    def __init__(
        self,
        request: Request,
        sink: EventSink,
        text: Any = None,
        arrival_s: float = 0.0,
    ) -> None:
        self.request = request
        self.arrival_s = arrival_s
        self.sink = sink
        self.version: Any = None
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.num_computed = 0
        self.block_table: list[int] = []
        self.block_keys: list[bytes] = []
        self.num_kept_blocks = 0
        self.num_cached = 0
        self.num_overtaken = 0
        self.memory_rows: Any = None
        self.conv_states: Mapping[int, Any] | None = None
        self.snapshots: dict[int, dict[int, Any]] = {}
        self.usage: dict[int, LayerUsage] = {}
        self.text = text
        self.prompt_logprobs: list[TokenLogprob] = []
        self.num_preemptions = 0
        self.is_ended = False
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.inter_token_s: list[float] = []

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def num_tokens(self) -> int:
        """Tokens in the history."""
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def generated_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are still missing; at least one between steps."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether the next forward is one token that continues a generation."""
        return self.num_uncomputed == 1 and self.num_generated > 0

    @property
    def uses_memory(self) -> bool:
        """Whether this request reads the memory at all."""
        return self.version is not None and self.request.engram.enabled

    def restart(self) -> list[int]:
        """Forget everything computed (preemption); returns the blocks to give back."""
        blocks, self.block_table = self.block_table, []
        self.num_computed = self.num_kept_blocks = 0
        self.conv_states = None
        self.snapshots.clear()
        return blocks
