"""Hot lists: which rows were hot when a server stopped, so that the next one starts with them.

A file for every layer and cache, named after the memory's id: another memory's list is never taken
for this one's. A list is a hint, so nothing that is wrong with one fails a start or a stop.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from engram_core.errors import ArtefactError, ConfigError, EngramError
from engram_core.memory_config import MemoryConfig
from engram_core.store.warm_start import RowCache, caches_of, load_hot_list, save_hot_list
from engram_core.version import MemoryVersion

LOG = logging.getLogger("engram.lifecycle")
PHASE = "hot rows"
WARM_LIMIT_S = 10.0  # a start must not wait longer for rows that will come by themselves

Progress = Callable[[str, float], None]
Key = tuple[int, str]  # a layer, and the tier name of a cache


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
    timings: dict[str, float] | None = None,
    limit_s: float = WARM_LIMIT_S,
) -> None:
    """Fetch the rows that were hot, for at most about `limit_s` seconds, and log what came of it.

    Args:
        version: the memory whose caches are warmed; None is said in the log, as no cache is.
        memory: names the folder, or none.
        progress: receives the phase and the fraction that is done.
        timings: receives the seconds of the phase, if a list was found.
        limit_s: after it the rest comes in as it is met. One piece of 4096 rows is never cut.
    """
    if memory.hot_list_dir is None:
        return
    caches = caches_of(version.tiers) if version is not None else {}
    if version is None or not caches:
        why = "no memory is served" if version is None else version.why_tiers
        LOG.warning("hot_list_dir is set without a hot cache, no list is kept (%s)", why)
        return
    folder = _folder(memory.hot_list_dir)
    paths = {key: folder / list_name(version, *key) for key in caches}
    # the innermost first: a cache on the device then takes its rows out of the one behind it
    found = {key: paths[key] for key in reversed(paths) if os.path.exists(paths[key])}
    if len(found) < len(paths):
        absent = ", ".join(path.name for key, path in paths.items() if key not in found)
        LOG.info("no hot list yet: %s", absent)
    if found:
        started_s = time.monotonic()
        _warm(caches, found, progress, limit_s)
        if timings is not None:
            timings[PHASE] = time.monotonic() - started_s


def save_hot_lists(version: MemoryVersion, memory: MemoryConfig) -> None:
    """Replace the lists of a memory that is served no longer; a cache without rows leaves its own.

    What cannot be written is a warning, and the list that was there stays.
    """
    caches = caches_of(version.tiers)
    if memory.hot_list_dir is None or not caches:
        return
    folder, started_s, rows = _folder(memory.hot_list_dir), time.monotonic(), 0
    for key, cache in caches.items():
        resident = cache.resident_rows
        name = list_name(version, *key)
        try:
            if resident:
                save_hot_list(cache, folder / name)
        except OSError as error:
            LOG.warning("hot list %s is not saved: %s", name, error.strerror)
        else:
            rows += resident
    facts = {"rows": rows, "seconds": round(time.monotonic() - started_s, 3)}
    LOG.info("hot rows saved", extra={"facts": facts})


def list_name(version: MemoryVersion, layer: int, cache: str = "hot") -> str:
    """The file of a cache's list: by content and never by place."""
    where = "" if cache == "hot" else f"-{cache}"
    return f"{version.id}-layer{layer}{where}.safetensors"


def _warm(
    caches: Mapping[Key, RowCache], paths: Mapping[Key, Path], progress: Progress, limit_s: float
) -> None:
    started_s, rows, is_cut = time.monotonic(), 0, False
    for index, (key, path) in enumerate(paths.items()):

        def go_on(done: int, wanted: int, index: int = index) -> bool:
            nonlocal is_cut
            progress(PHASE, (index + done / wanted) / len(paths))
            is_over = time.monotonic() - started_s > limit_s
            is_cut = is_cut or (is_over and done < wanted)
            return not is_over

        try:
            rows += load_hot_list(caches[key], path, go_on)
        except ArtefactError as error:
            LOG.warning("hot list ignored: %s", error)
        except EngramError as error:
            LOG.warning("hot list %s given up: %s", path.name, error)
    facts = {"rows": rows, "seconds": round(time.monotonic() - started_s, 3)}
    LOG.info("hot rows warmed", extra={"facts": facts})
    if is_cut:
        LOG.info("warming stopped after %g s; other rows come in as they are met", limit_s)


def _folder(path: str) -> Path:
    return Path(path).expanduser()
