"""PrefillPace: how much of a prompt a step may take while other sequences generate.

The time between two tokens of a running stream is the duration of a step. A step that also
computes part of a prompt may take a given multiple of one that only generates; from the durations
it is told this class learns how many tokens that is, on whatever device and at whatever length of
context. Knows no clock and no sequences.
"""

from __future__ import annotations

from collections import deque
from statistics import median

MIN_TOKENS = 16  # a prompt always moves on; fewer tokens cost nearly as much
PROBE_STEPS = 64  # so many mixed steps, then one that only generates is measured again
_MEMORY = 9  # durations whose median counts: a step that something else held up changes nothing
_WEIGHT = 0.3  # of the newest cost of a token


class PrefillPace:
    """Turns a bound on the time between tokens into a budget of prompt tokens.

    Args:
        max_slowdown: a mixed step may take so many times as long as one that only generates,
            and longer only while more sequences wait than generate; None: no bound.
    """

    def __init__(self, max_slowdown: float | None) -> None:
        self._is_bounded = max_slowdown is not None
        self._share = (max_slowdown or 1) - 1  # of a step that generates: what prompts may add
        self._decode_s: dict[int, deque[float]] = {}  # of generating alone, by size of batch
        self._token_s: float | None = None  # what a prompt token adds
        self._mixed_steps = 0

    def budget(self, num_decodes: int, num_prefills: int = 1) -> int | None:
        """Prompt tokens beside ``num_decodes`` generating sequences; None: no bound.

        When more sequences wait for their first token than generate, what the prompts may add
        grows in the same proportion: few do not hold up many. 0 asks for a step that only
        generates, because there is nothing to compare with yet.
        """
        if not self._is_bounded or num_decodes == 0:
            return None
        known = self._decode_s.get(_size_class(num_decodes))
        if not known or self._mixed_steps >= PROBE_STEPS:
            return 0
        return self._affordable(median(known), max(1.0, num_prefills / num_decodes))

    def note(self, num_decodes: int, num_prefill_tokens: int, duration_s: float) -> None:
        """Learn from a step; every step must be told."""
        if not self._is_bounded or num_decodes == 0:
            return
        known = self._decode_s.setdefault(_size_class(num_decodes), deque(maxlen=_MEMORY))
        if num_prefill_tokens == 0:
            known.append(duration_s)
            self._mixed_steps = 0
            return
        self._mixed_steps += 1
        if known:
            self._note_mixed(median(known), num_prefill_tokens, duration_s)

    def _note_mixed(self, decode_s: float, num_tokens: int, duration_s: float) -> None:
        if num_tokens < max(MIN_TOKENS, self._affordable(decode_s) // 2):
            return  # too few to say what a token adds
        # whatever a clock says, the budget at most doubles from one step to the next
        added_s = max(duration_s - decode_s, self._share * decode_s / 2)
        self._token_s = _blend(self._token_s, added_s / num_tokens)

    def _affordable(self, decode_s: float, weight: float = 1.0) -> int:
        """Prompt tokens that add no more than they may to a step of ``decode_s``."""
        if self._token_s is None:
            return MIN_TOKENS
        return max(MIN_TOKENS, int(weight * self._share * decode_s / self._token_s))


def _size_class(num_decodes: int) -> int:
    """Batches of 1, 2, 3-4, 5-8, ... sequences take about as long as each other."""
    return (num_decodes - 1).bit_length()


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
