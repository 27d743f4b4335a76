"""MemoryVersion: one immutable memory, shared by reference counting.

Layout, hasher, tables and module weights that belong together. A sequence, and every ticket it
opens, holds one version from admission to its end, so replacing the memory can never mix two.
Knows nothing about who holds it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Self

from engram_core.config import EngramConfig
from engram_core.errors import ConfigError, StateError
from engram_core.hashing import NgramHasher
from engram_core.hits import HitRule
from engram_core.inline_limit import InlineLimit
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.served_orders import ServedOrders
from engram_core.stats import MemoryStats
from engram_core.store.base import Tier
from engram_core.store.tier_stats import memory_stats


class MemoryVersion:
    """An immutable, reference-counted memory. Whoever creates it holds the first reference.

    Args:
        hasher: the hasher, which carries layout, configuration and the orders that are read.
        compressor_fingerprint: of the class map the hasher was made with.
        tiers: the table of each Engram layer.
        modules: the gated module of each Engram layer.
        content: a digest of table and module bytes (an artefact's checksum), part of the id.
        inline_limit: how large a decode step may be for its layer to look it up; None leaves it to
            the prefetcher.
        why_tiers: where the tables lie and why, for people.
        on_last_release: called once, on the thread that gives the last reference back.

    Attributes:
        served: the n-gram orders that are read; the rows of others are zeros to compute.
        hit_rule: which tokens can contribute; None when all can.
        id: hexadecimal name derived from configuration, constants, class map and content, and from
            the orders where some are dropped: their results are others.
    """

    def __init__(
        self,
        hasher: NgramHasher,
        compressor_fingerprint: str,
        tiers: Mapping[int, Tier],
        modules: Mapping[int, EngramModule],
        *,
        content: str,
        inline_limit: InlineLimit | None = None,
        why_tiers: str = "dram: made in memory",
        on_last_release: Callable[[], None] | None = None,
    ) -> None:
        self.hasher = hasher
        self.layout: HashLayout = hasher.layout
        self.config: EngramConfig = hasher.layout.config
        self.served: ServedOrders = hasher.served
        self.hit_rule = HitRule(self.served) if self.config.min_hit_orders else None
        self.compressor_fingerprint = compressor_fingerprint
        self.layer_ids = tuple(sorted(self.config.layer_ids))  # the order compute meets them in
        _check_layers(self.layout, tiers, modules)
        self.tiers: Mapping[int, Tier] = MappingProxyType(dict(tiers))
        self.modules: Mapping[int, EngramModule] = MappingProxyType(dict(modules))
        self._content = content
        self.id = _content_id(self.layout, compressor_fingerprint, content, self.served)
        self.inline_limit = inline_limit
        self.why_tiers = why_tiers
        self._on_last_release = on_last_release
        self._references = 1
        self._lock = threading.Lock()

    @property
    def references(self) -> int:
        """Holders at this moment."""
        return self._references

    @property
    def is_freed(self) -> bool:
        """Whether the last reference was given back: nothing of it changes any more."""
        return self._references == 0

    def stats(self) -> MemoryStats:
        """What its tiers counted so far."""
        return memory_stats(self.tiers)

    def acquire(self) -> Self:
        """Add a holder.

        Raises:
            StateError: the last reference was already given back.
        """
        with self._lock:
            if self._references == 0:
                raise StateError(f"memory version {self.id} was closed; it cannot be acquired")
            self._references += 1
        return self

    def behind(
        self, tiers: Mapping[int, Tier], why_tiers: str, close: Callable[[], None]
    ) -> MemoryVersion:
        """The same memory, read through other tiers that deliver the same rows.

        Args:
            tiers: of each Engram layer; may stand in front of this one's.
            why_tiers: as in the constructor.
            close: called when the result is given back, before this memory is.

        Returns:
            A memory that takes over the caller's reference to this one.
        """

        def finish() -> None:
            close()
            self.release()

        return MemoryVersion(
            self.hasher,
            self.compressor_fingerprint,
            tiers,
            self.modules,
            content=self._content,
            inline_limit=self.inline_limit,
            why_tiers=why_tiers,
            on_last_release=finish,
        )

    def when_freed(self, call: Callable[[], None]) -> None:
        """Add a call for when the last reference is given back; the caller holds one."""
        with self._lock:
            before = self._on_last_release

        def both() -> None:
            if before is not None:
                before()
            call()

        self._on_last_release = both

    def release(self) -> None:
        """Give a reference back; the last one runs `on_last_release`.

        Raises:
            StateError: there is no reference left to give back.
        """
        with self._lock:
            if self._references == 0:
                raise StateError(f"memory version {self.id} was released more often than acquired")
            self._references -= 1
            is_last = self._references == 0
        if is_last:
            if self._on_last_release is not None:
                self._on_last_release()
            # whoever still holds this object, a hook for example, holds no tables
            self.tiers = MappingProxyType({})
            self.modules = MappingProxyType({})


def _content_id(
    layout: HashLayout, compressor_fingerprint: str, content: str, served: ServedOrders
) -> str:
    facts = [layout.config.to_dict(), layout.to_dict(), compressor_fingerprint, content]
    if served.dropped:
        facts.append({"orders": served.orders})
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _check_layers(
    layout: HashLayout, tiers: Mapping[int, Tier], modules: Mapping[int, EngramModule]
) -> None:
    config = layout.config
    for name, given in (("tiers", tiers), ("modules", modules)):
        if set(given) != set(config.layer_ids):
            raise ConfigError(
                f"{name} covers layers {sorted(given)}; accepted: {sorted(config.layer_ids)}"
            )
    for layer, tier in tiers.items():
        expected = (layout.rows[layer], config.head_dim)
        if (tier.num_rows, tier.row_dim) != expected:
            raise ConfigError(
                f"the table of layer {layer} is {(tier.num_rows, tier.row_dim)}; "
                f"accepted: {expected}"
            )
