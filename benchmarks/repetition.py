"""How much of a greedy answer says again what it said before. Knows token ids alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def repeated_share(answers: Sequence[Sequence[int]]) -> float:
    """The share of pairs of neighbouring tokens that stood in the same answer before.

    A greedy answer of a small model often runs in circles, and then asks a memory for rows that it
    has just had. 0 where no answer has two tokens.
    """
    pairs = [list(pairwise(answer)) for answer in answers]
    total = sum(map(len, pairs))
    distinct = sum(len(set(each)) for each in pairs)
    return 1 - distinct / total if total else 0.0
