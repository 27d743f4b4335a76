"""How a step's prompt tokens are shared out among started prefills. Arithmetic only.

The oldest prompt is sure of half of them, so that it is always finished in the end; the rest goes
to the highest priority and, among equals, to the prompt that lacks least, so that a short one
need not wait behind a long one.
"""

from __future__ import annotations

from collections.abc import Sequence


def share_out(lacking: Sequence[int], priorities: Sequence[int], budget: int) -> list[int]:
    """Tokens for each prompt.

    Args:
        lacking: tokens that each prompt still needs, oldest prompt first.
        priorities: the highest goes first.
        budget: tokens to give out.
    """
    shares = [0] * len(lacking)
    if lacking:
        shares[0] = min(lacking[0], -(-budget // 2))
    left = budget - sum(shares)
    for index in sorted(range(len(lacking)), key=lambda i: (-priorities[i], lacking[i])):
        more = min(lacking[index] - shares[index], left)
        shares[index] += more
        left -= more
    return shares
