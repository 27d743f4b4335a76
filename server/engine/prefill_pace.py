"""PrefillPace: how much of a prompt a step may take while other sequences generate.

The time between two tokens of a running stream is the duration of a step. A step that also
computes part of a prompt may take a given multiple of one that only generates; from the durations
it is told this class learns how many tokens that is, on whatever device and at whatever length of
context. Knows no clock and no sequences.
"""

from __future__ import annotations

MIN_TOKENS = 16  # a prompt always moves on; fewer tokens cost nearly as much
PROBE_STEPS = 64  # so many mixed steps, then one that only generates is measured again
_WEIGHT = 0.3  # of the newest measurement


class PrefillPace:
    """Turns a bound on the time between tokens into a budget of prompt tokens.

    Args:
        max_decode_slowdown: a mixed step may take so many times as long as one that only generates;
            None: no bound.
    """

    def __init__(self, max_decode_slowdown: float | None) -> None:
        self._is_bounded = max_decode_slowdown is not None
        self._share = (
            max_decode_slowdown or 1
        ) - 1  # what prompts may add to a step that generates
        self._decode_s: dict[int, float] = {}  # duration of generating alone, by size of batch
        self._token_s: float | None = None  # what a prompt token adds
        self._mixed_steps = 0

    def budget(self, num_decodes: int) -> int | None:
        """Prompt tokens beside ``num_decodes`` generating sequences; None: no bound.

        0 asks for a step that only generates, because there is nothing to compare with yet.
        """
        if not self._is_bounded or num_decodes == 0:
            return None
        decode_s = self._decode_s.get(_size_class(num_decodes))
        if decode_s is None or self._mixed_steps >= PROBE_STEPS:
            return 0
        return self._affordable(decode_s)

    def note(self, num_decodes: int, num_prefill_tokens: int, duration_s: float) -> None:
        """Learn from a step; every step must be told."""
        if not self._is_bounded or num_decodes == 0:
            return
        size = _size_class(num_decodes)
        decode_s = self._decode_s.get(size)
        if num_prefill_tokens == 0:
            self._decode_s[size] = _blend(decode_s, duration_s)
            self._mixed_steps = 0
            return
        self._mixed_steps += 1
        if decode_s is not None:
            self._note_mixed(decode_s, num_prefill_tokens, duration_s)

    def _note_mixed(self, decode_s: float, num_tokens: int, duration_s: float) -> None:
        if num_tokens < max(MIN_TOKENS, self._affordable(decode_s) // 2):
            return  # too few to say what a token adds
        # whatever a clock says, the budget at most doubles from one step to the next
        added_s = max(duration_s - decode_s, self._share * decode_s / 2)
        self._token_s = _blend(self._token_s, added_s / num_tokens)

    def _affordable(self, decode_s: float) -> int:
        """Prompt tokens that add no more than they may to a step of ``decode_s``."""
        if self._token_s is None:
            return MIN_TOKENS
        return max(MIN_TOKENS, int(self._share * decode_s / self._token_s))


def _size_class(num_decodes: int) -> int:
    """Batches of 1, 2, 3-4, 5-8, ... sequences take about as long as each other."""
    return (num_decodes - 1).bit_length()


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
