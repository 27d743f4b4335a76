"""RowAudit: looks a share of the rows up once more, from the tokens themselves, and compares bits.

A ticket hashed its tokens when it was opened, and a cache may stand in front of its tier. Nothing
of both is used here: what the engine has committed when compute takes the rows is hashed anew and
read behind every cache. Knows no tickets; used by the thread that computes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engram_core.errors import ConfigError
from engram_core.memory import Int64Array, Memory
from engram_core.stats import AuditStats
from engram_core.store.base import Tier
from engram_core.store.chain import tier_chain

BoolArray = npt.NDArray[np.bool_]

_log = logging.getLogger(__name__)
_WORDS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """The tokens of one sequence that a forward computes.

    Attributes:
        request: whose they are, for the log.
        token_ids: its whole history as it is now, raw ids.
        start, stop: positions that are computed, `stop` exclusive.
    """

    request: str
    token_ids: Sequence[int]
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        """Positions that are computed."""
        return self.stop - self.start


class RowAudit:
    """Compares what compute was given with what it should have been given.

    Args:
        share: of the lookups, each one sequence's tokens of a step in one layer; 0 to 1.
        seed: of the choice, which is the same in every run of the same lookups.

    Attributes:
        share: as given.

    Raises:
        ConfigError: `share` is out of range.
    """

    def __init__(self, share: float, *, seed: int = 0) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"the audited share is {share}; accepted: 0 to 1")
        self.share = share
        self._random = random.Random(seed)  # noqa: S311 - a sample, no secret
        self._counts = AuditStats()
        self._told: set[tuple[str, int]] = set()

    def check(
        self,
        memory: Memory,
        layer: int,
        tokens: CommittedTokens,
        rows: torch.Tensor | None,
        live: BoolArray | None,
    ) -> None:
        """Compare a lookup if it is drawn; never raises for what it finds or cannot read.

        Args:
            memory: the memory that the sequence reads.
            layer: the Engram layer.
            tokens: the sequence's own.
            rows: what compute gets for them, ``[tokens, row_width]``; None where it gets nothing.
            live: positions that compute is told to use, ``[tokens]``; None: all of them.
        """
        if self._random.random() >= self.share:
            return
        try:
            is_right = _compare(memory, layer, tokens, rows, live)
        except Exception:  # noqa: BLE001 - what cannot be read again costs no request
            self._count_unread(memory, tokens)
            self._tell_once("unread", layer, "the rows of layer %d could not be audited", layer)
            return
        wrong = np.flatnonzero(~is_right.all(axis=1))
        num_right = int(np.count_nonzero(is_right))
        self._counts += AuditStats(match=num_right, mismatch=is_right.size - num_right)
        if wrong.size:
            self._tell_once(
                memory.id,
                layer,
                "rows are not those of the tokens: request %s, position %d, layer %d; later ones "
                "of this layer are only counted",
                tokens.request,
                tokens.start + int(wrong[0]),
                layer,
            )

    def skip(self, memory: Memory, tokens: CommittedTokens) -> None:
        """Count a lookup that is drawn as one that has no rows to compare."""
        if self._random.random() < self.share:
            self._count_unread(memory, tokens)

    def drain(self) -> AuditStats:
        """Rows compared since the last call."""
        counts, self._counts = self._counts, AuditStats()
        return counts

    def _count_unread(self, memory: Memory, tokens: CommittedTokens) -> None:
        self._counts += AuditStats(unread=tokens.num_tokens * memory.served.num_columns)

    def _tell_once(self, about: str, layer: int, text: str, *values: object) -> None:
        if (about, layer) not in self._told:
            self._told.add((about, layer))
            _log.error(text, *values, exc_info=about == "unread")


def _compare(
    memory: Memory,
    layer: int,
    tokens: CommittedTokens,
    rows: torch.Tensor | None,
    live: BoolArray | None,
) -> BoolArray:
    """Which rows are right: bool ``[tokens, columns]``; those left out are if nobody needs them."""
    tier = list(tier_chain(memory.tiers[layer]))[-1]
    row_ids = _row_ids(memory, layer, tokens)
    dtype = torch.bfloat16 if rows is None else rows.dtype
    expected = torch.empty(row_ids.size, tier.row_dim, dtype=dtype)
    tier.gather(row_ids.reshape(-1), expected)
    if rows is None:
        is_used = np.zeros(len(row_ids), dtype=np.bool_)
    else:
        is_used = np.ones(len(row_ids), dtype=np.bool_) if live is None else live
    is_right = np.zeros(row_ids.shape, dtype=np.bool_)
    if rows is not None:
        is_right = _equal_rows(rows, expected).reshape(row_ids.shape)
    if not is_used.all():
        is_silent = ~_contributes(memory, tier, row_ids, expected)
        is_right = np.where(is_used[:, None], is_right, is_silent[:, None])
    return is_right


def _row_ids(memory: Memory, layer: int, tokens: CommittedTokens) -> Int64Array:
    first = max(0, tokens.start - memory.config.max_order)
    history = list(tokens.token_ids[first : tokens.start])
    windows = memory.hasher.windows(list(tokens.token_ids[tokens.start : tokens.stop]), history)
    return memory.hasher.window_rows(windows, layer)


def _equal_rows(found: torch.Tensor, expected: torch.Tensor) -> BoolArray:
    """Whether all bits are equal, row by row: NaN equals itself, and -0.0 is not 0.0."""
    words = _WORDS[expected.dtype]
    ours = found.detach().to("cpu").contiguous().view(expected.shape).view(words)
    equal: BoolArray = (ours == expected.view(words)).all(-1).numpy()
    return equal


def _contributes(memory: Memory, tier: Tier, row_ids: Int64Array, rows: torch.Tensor) -> BoolArray:
    """Positions that the hit rule lets contribute; all without a rule."""
    rule = memory.hit_rule
    if rule is None:
        return np.ones(len(row_ids), dtype=np.bool_)
    return (rule.of_ids(tier, row_ids) or rule.of_rows(rows)).mask
