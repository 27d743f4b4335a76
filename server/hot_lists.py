"""Hot lists: which rows were hot when a server stopped, so that the next one starts with them.

A file for every layer, named after the memory's id: another memory's list is never taken for this
one's. A list is a hint, so nothing that is wrong with one fails a start or a stop.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from engram_core.errors import ArtefactError, ConfigError, EngramError
from engram_core.memory_config import MemoryConfig
from engram_core.store.hot_cache import HotCache, find_hot_cache
from engram_core.version import MemoryVersion

LOG = logging.getLogger("engram.lifecycle")
PHASE = "hot rows"
WARM_LIMIT_S = 10.0  # a start must not wait longer for rows that will come by themselves

Progress = Callable[[str, float], None]


def prepare_hot_lists(memory: MemoryConfig) -> None:
    """Make the folder of the lists, if one is named.

    Raises:
        ConfigError: it cannot be made, or is no folder.
    """
    if memory.hot_list_dir is None:
        return
    folder = _folder(memory.hot_list_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"hot_list_dir {folder.name!r} cannot be made ({error.strerror}); accepted: a folder"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        LOG.warning("hot_list_dir %r cannot be written: lists are read only", folder.name)


def load_hot_lists(
    version: MemoryVersion | None,
    memory: MemoryConfig,
    progress: Progress = lambda _phase, _fraction: None,
    limit_s: float = WARM_LIMIT_S,
) -> None:
    """Fetch the rows that were hot, for at most about `limit_s` seconds, and log what came of it.

    Args:
        version: the memory whose caches are warmed; None is said in the log, as no cache is.
        memory: names the folder, or none.
        progress: receives the phase and the fraction that is done.
        limit_s: after it the rest comes in as it is met. One piece of 4096 rows is never cut.
    """
    if memory.hot_list_dir is None:
        return
    caches = _caches(version) if version is not None else {}
    if version is None or not caches:
        why = "no memory is served" if version is None else version.why_tiers
        LOG.warning("hot_list_dir is set without a hot cache, no list is kept (%s)", why)
        return
    folder = _folder(memory.hot_list_dir)
    paths = {layer: folder / list_name(version, layer) for layer in caches}
    found = {layer: path for layer, path in paths.items() if os.path.exists(path)}
    if len(found) < len(paths):
        absent = ", ".join(path.name for layer, path in paths.items() if layer not in found)
        LOG.info("no hot list yet: %s", absent)
    if found:
        _warm(caches, found, progress, limit_s)


def save_hot_lists(version: MemoryVersion, memory: MemoryConfig) -> None:
    """Replace the lists of a memory that is served no longer; a cache without rows leaves its own.

    What cannot be written is a warning, and the list that was there stays.
    """
    caches = _caches(version)
    if memory.hot_list_dir is None or not caches:
        return
    folder, started_s, rows = _folder(memory.hot_list_dir), time.monotonic(), 0
    for layer, cache in caches.items():
        resident = cache.resident_rows
        name = list_name(version, layer)
        try:
            if resident:
                cache.save_hot_list(folder / name)
        except OSError as error:
            LOG.warning("hot list %s is not saved: %s", name, error.strerror)
        else:
            rows += resident
    facts = {"rows": rows, "seconds": round(time.monotonic() - started_s, 3)}
    LOG.info("hot rows saved", extra={"facts": facts})


def list_name(version: MemoryVersion, layer: int) -> str:
    """The file of a layer's list: by content and never by place."""
    return f"{version.id}-layer{layer}.safetensors"


def _warm(
    caches: Mapping[int, HotCache], paths: Mapping[int, Path], progress: Progress, limit_s: float
) -> None:
    started_s, rows, is_cut = time.monotonic(), 0, False
    for index, (layer, path) in enumerate(paths.items()):

        def go_on(done: int, wanted: int, index: int = index) -> bool:
            nonlocal is_cut
            progress(PHASE, (index + done / wanted) / len(paths))
            is_over = time.monotonic() - started_s > limit_s
            is_cut = is_cut or (is_over and done < wanted)
            return not is_over

        try:
            rows += caches[layer].load_hot_list(path, go_on)
        except ArtefactError as error:
            LOG.warning("hot list ignored: %s", error)
        except EngramError as error:
            LOG.warning("hot list %s given up: %s", path.name, error)
    facts = {"rows": rows, "seconds": round(time.monotonic() - started_s, 3)}
    LOG.info("hot rows warmed", extra={"facts": facts})
    if is_cut:
        LOG.info("warming stopped after %g s; other rows come in as they are met", limit_s)


def _caches(version: MemoryVersion) -> dict[int, HotCache]:
    found = {layer: find_hot_cache(tier) for layer, tier in version.tiers.items()}
    return {layer: cache for layer, cache in found.items() if cache is not None}


def _folder(path: str) -> Path:
    return Path(path).expanduser()
