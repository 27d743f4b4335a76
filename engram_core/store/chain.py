"""Tiers that stand one in front of the other, as they are composed. Knows no tier by name."""

from __future__ import annotations

from collections.abc import Iterator

from engram_core.store.base import Tier


def tier_chain(tier: Tier) -> Iterator[Tier]:
    """The tier and those behind it, each the `inner` of the one before; the last has the rows."""
    each: Tier | None = tier
    while each is not None:
        yield each
        each = getattr(each, "inner", None)
