"""MemorySwap: puts another artefact in the place of the one that is served, without a pause.

Loads and verifies beside the running memory, and only then lets new requests read it; what runs
keeps its memory, which is freed with its last sequence. Knows no HTTP.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engram_core.device import Device
from engram_core.device_placement import cache_on_device
from engram_core.errors import StateError
from engram_core.memory_config import MemoryConfig
from engram_core.prefetch import Prefetcher
from engram_core.tables import Artefact
from engram_core.version import MemoryVersion
from server.artefact_choice import shelved_artefact
from server.engine.engine import Engine
from server.hot_lists import load_hot_lists, save_hot_lists
from server.loader import open_memory
from server.memory_info import MemoryFacts, memory_facts

LOG = logging.getLogger("engram.lifecycle")


@dataclass(frozen=True, slots=True)
class SwapPlace:
    """What a new memory has to fit into.

    Attributes:
        model: the served backbone. tokenizer: its tokenizer.
        device: where it runs.
        engine: not yet started, or running. prefetcher: its prefetcher.
        engram_dir: where names are looked for. config: where tables lie.
    """

    model: Any
    tokenizer: Any
    device: Device
    engine: Engine
    prefetcher: Prefetcher
    engram_dir: Path | None
    config: MemoryConfig


class MemorySwap:
    """Swaps one after another.

    Args:
        place: what a new memory has to fit into.
        artefact: the one that is served. version: its memory, whose reference this takes over.
    """

    def __init__(self, place: SwapPlace, artefact: Artefact, version: MemoryVersion) -> None:
        self._place, self._artefact, self._version = place, artefact, version
        self._lock = threading.Lock()

    def __call__(self, name: str, forget: Callable[[str], None]) -> MemoryFacts:
        """Serve the artefact `name` from now on; returns what /info says of it.

        Args:
            name: a name inside the folder of artefacts.
            forget: called with an old memory's id once nobody reads it, on any thread.

        Raises:
            StateError: another swap is under way.
            LoadError: there is no such artefact.
            ArtefactError: it is damaged, or made for another model or tokenizer.
            ConfigError: its tables cannot lie where the configuration says.
        """
        if not self._lock.acquire(blocking=False):
            raise StateError("another swap is under way; accepted: one at a time")
        try:
            artefact, version = self._load(name)
            self._exchange(artefact, version, forget)
            return memory_facts(artefact, version, self._place.prefetcher)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Give back the memory that is served last; its hot rows are listed for the next start."""
        save_hot_lists(self._version, self._place.config)
        self._version.release()

    def _load(self, name: str) -> tuple[Artefact, MemoryVersion]:
        place = self._place
        folder = shelved_artefact(name, place.engram_dir)
        backbone = self._artefact.manifest.backbone  # the model's own: it was checked at start
        artefact, version = open_memory(folder, backbone, place.tokenizer, place.config)
        for module in version.modules.values():
            module.to(place.model.device, place.model.dtype)
        try:
            version = cache_on_device(version, place.device, place.config)
        except Exception:
            version.release()
            raise
        load_hot_lists(version, place.config)
        return artefact, version

    def _exchange(
        self, artefact: Artefact, version: MemoryVersion, forget: Callable[[str], None]
    ) -> None:
        try:
            before = self._place.engine.swap_memory(version)
        except Exception:
            version.release()
            raise
        LOG.info("memory swapped", extra={"facts": {"from": before.id, "to": version.id}})
        before_id = before.id
        before.when_freed(lambda: forget(before_id))
        self._artefact, self._version = artefact, version
        save_hot_lists(before, self._place.config)
        before.release()
