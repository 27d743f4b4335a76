"""Hot lists: saved by the memory's content, loaded within a limit, and never a reason to fail."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from artefacts import tiny_compressor, tiny_content

from engram_core.assembly import open_version
from engram_core.device_placement import cache_on_device
from engram_core.errors import ConfigError
from engram_core.memory_config import MemoryConfig
from engram_core.simulated import SimulatedDevice
from engram_core.store.fallback import ZeroFallbackTier
from engram_core.store.hot_list import HotList, write_hot_list
from engram_core.store.warm_start import caches_of, warm
from engram_core.tables import open_table, write_artefact
from engram_core.tables.convert import pack_artefact
from server.hot_lists import list_name, load_hot_lists, prepare_hot_lists, save_hot_lists

HOT = np.arange(40, dtype=np.int64)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    shelf = tmp_path_factory.mktemp("shelf")
    for name, dtype in (("one", "int8"), ("other", "bfloat16")):
        write_artefact(shelf / f"{name}-source", tiny_content(storage="dense", dtype="float32"))
        pack_artefact(open_table(shelf / f"{name}-source"), shelf / name, dtype)
    return shelf


@pytest.fixture
def told(tmp_path):
    return MemoryConfig(tier="ssd", hot_cache="on", hot_list_dir=str(tmp_path / "lists"))


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "engram.lifecycle")
    return lambda: [(each.levelname, each.getMessage()) for each in caplog.records]


def version_of(shelf, config, name="one"):
    return open_version(open_table(shelf / name), tiny_compressor(), config)


def read(version, ids=HOT):
    """Rows by tier of one gather in every layer."""
    counts = {}
    for tier in version.tiers.values():
        out = torch.empty(ids.size, tier.row_dim, dtype=torch.bfloat16)
        for name, rows in tier.gather(ids, out).rows_by_tier.items():
            counts[name] = counts.get(name, 0) + rows
    return counts


def saved(shelf, config):
    """A memory whose rows `HOT` were read twice, and its list."""
    version = version_of(shelf, config)
    read(version)
    read(version)
    prepare_hot_lists(config)
    save_hot_lists(version, config)
    return version


def paths(version, config):
    return [Path(config.hot_list_dir) / list_name(version, layer) for layer in (1, 2)]


def test_saved_rows_are_hits_at_once_in_the_next_version(packed, told, log):
    before = saved(packed, told)
    assert sorted(os.listdir(told.hot_list_dir)) == [
        f"{before.id}-layer{n}.safetensors" for n in "12"
    ]
    after, shares = version_of(packed, told), []
    load_hot_lists(after, told, lambda phase, share: shares.append((phase, share)))
    assert read(after) == {"hot": 80}
    assert shares == [("hot rows", 0.5), ("hot rows", 1.0)]
    assert [line for _, line in log()] == ["hot rows saved", "hot rows warmed"]


def test_another_memory_has_lists_of_its_own(packed, told, log):
    saved(packed, told)
    other = version_of(packed, told, "other")
    load_hot_lists(other, told)
    assert read(other) == {"ssd": 80}
    absent = ", ".join(list_name(other, layer) for layer in (1, 2))
    assert log()[1:] == [("INFO", f"no hot list yet: {absent}")]


def test_what_is_over_the_limit_comes_in_as_it_is_met(packed, told, log, monkeypatch):
    saved(packed, told)
    monkeypatch.setattr("engram_core.store.warm_start.CHUNK_ROWS", 16)
    after = version_of(packed, told)
    load_hot_lists(after, told, limit_s=-1)
    assert [cache.resident_rows for cache in caches_of(after.tiers).values()] == [16, 16]
    assert log()[-1][1].startswith("warming stopped after -1 s")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: write_hot_list(path, HotList(7, 8, HOT[:3], np.ones(3, np.uint8))), "shape"),
        (lambda path: path.write_bytes(b"nothing of the kind"), "no readable list of hot rows"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "no readable list of hot rows"),
        (lambda path: (path.unlink(), path.mkdir()), "no readable list of hot rows"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_warning(packed, told, log, tmp_path, damage, reason):
    before = saved(packed, told)
    name = list_name(before, 1)
    damage(tmp_path / "lists" / name)
    after = version_of(packed, told)
    load_hot_lists(after, told)
    assert read(after) == {"hot": 40, "ssd": 40}
    (warning,) = [line for level, line in log() if level == "WARNING"]
    assert warning.startswith(f"hot list ignored: {name}")
    assert reason in warning
    assert str(tmp_path) not in warning


def test_rows_that_cannot_be_read_end_the_warming_and_no_start(packed, told, log):
    saved(packed, told)
    after = version_of(packed, told)
    for tier in after.tiers.values():  # the file is empty all at once
        with open(os.devnull, "rb") as empty:
            os.dup2(empty.fileno(), int(tier.inner._fds[0]))
    load_hot_lists(after, told)
    warnings = [line for level, line in log() if level == "WARNING"]
    assert len(warnings) == 2
    assert all("given up: table-layer" in line for line in warnings)


def test_an_empty_cache_leaves_the_list(packed, told):
    before = saved(packed, told)
    kept = [path.read_bytes() for path in paths(before, told)]
    save_hot_lists(version_of(packed, told), told)
    assert [path.read_bytes() for path in paths(before, told)] == kept


def test_a_list_that_cannot_be_written_is_a_warning(packed, told, log, monkeypatch):
    before = saved(packed, told)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engram_core.store.hot_list.os.fsync", refuse)
    save_hot_lists(before, told)
    sentence = f"hot list {list_name(before, 1)} is not saved: No space left on device"
    assert ("WARNING", sentence) in log()


@pytest.mark.parametrize("config", [MemoryConfig(tier="dram"), MemoryConfig()])
def test_lists_without_a_cache_are_said(packed, log, tmp_path, config):
    told = MemoryConfig(tier=config.tier, hot_list_dir=str(tmp_path / "lists"))
    load_hot_lists(version_of(packed, told), told)
    load_hot_lists(None, told)
    (first, second) = log()
    assert first[1].startswith("hot_list_dir is set without a hot cache, no list is kept (dram: ")
    assert second == ("WARNING", "hot_list_dir is set without a hot cache, no list is kept "
                                 "(no memory is served)")  # fmt: skip


def test_nothing_is_said_or_made_when_no_lists_are_kept(packed, log):
    config = MemoryConfig(tier="ssd", hot_cache="on")
    version = version_of(packed, config)
    prepare_hot_lists(config)
    load_hot_lists(version, config)
    read(version)
    save_hot_lists(version, config)
    assert log() == []


def test_a_folder_that_is_none_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    config = MemoryConfig(hot_list_dir=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"^hot_list_dir 'file' cannot be made .*: a folder$"):
        prepare_hot_lists(config)


@pytest.mark.parametrize("value", ["", 3, ["a"]])
def test_a_value_that_names_no_folder_is_refused(value):
    with pytest.raises(ConfigError, match=r"hot_list_dir is .*; accepted: a folder's path"):
        MemoryConfig.from_dict({"hot_list_dir": value})


def test_lists_beside_a_cache_that_is_off_are_refused():
    with pytest.raises(ConfigError, match=r"^hot_list_dir is 'lists' beside hot_cache 'off'"):
        MemoryConfig(hot_list_dir="/somewhere/lists", hot_cache="off")


def test_the_cache_is_found_behind_what_stands_before_it(packed, told):
    tier = version_of(packed, told).tiers[1]
    assert caches_of({1: ZeroFallbackTier(tier)}) == {(1, "hot"): tier}
    assert caches_of({1: ZeroFallbackTier(tier.inner)}) == {}


def test_a_cache_on_the_device_has_a_list_of_its_own(packed, told):
    config = replace(told, device_cache="on")
    before = cache_on_device(version_of(packed, config), SimulatedDevice(0.0), config)
    for cache in caches_of(before.tiers).values():
        warm(cache, np.arange(5, 9))
    prepare_hot_lists(config)
    save_hot_lists(before, config)
    after = cache_on_device(version_of(packed, config), SimulatedDevice(0.0), config)
    load_hot_lists(after, config)
    found = caches_of(after.tiers)
    assert list(found) == [(1, "device"), (1, "hot"), (2, "device"), (2, "hot")]
    for cache in found.values():
        assert sorted(cache.hot_rows()) == [5, 6, 7, 8]
        assert (cache.hits, cache.misses) in {(0, 0), (0, 4), (4, 0)}
    assert len({list_name(after, *key) for key in found}) == 4
