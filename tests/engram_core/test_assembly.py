"""From an artefact to a memory that serves."""

import hashlib
import json
import re

import numpy as np
import pytest
import torch
from artefacts import tiny_compressor, tiny_content
from safetensors.torch import load_file, save_file

from engram_core.assembly import open_version
from engram_core.cpu_cores import usable_cores
from engram_core.errors import ConfigError, MismatchError, TierError
from engram_core.inline_limit import INLINE_RANGE
from engram_core.memory_config import MemoryConfig
from engram_core.store.host import HostTier
from engram_core.store.sparse import SparseTier
from engram_core.tables import open_table, write_artefact
from engram_core.tables.convert import pack_artefact
from engram_core.tables.rows import RowsReader

MEMORIES = (
    MemoryConfig(tier="dram"),
    MemoryConfig(tier="ssd", hot_cache="off"),
    MemoryConfig(),
    MemoryConfig(tier="ssd", hot_cache="on"),
    MemoryConfig(tier="dram", hot_cache="on", hot_cache_bytes=20_000),
)
NAMES = ("host", "ssd", "host", "hot", "hot")


@pytest.mark.parametrize(
    ("storage", "dtype", "tier"),
    [("sparse", "int4", SparseTier), ("dense", "float32", HostTier)],
)
def test_version_holds_the_artefacts_rows_and_weights(tmp_path, storage, dtype, tier) -> None:
    write_artefact(tmp_path / "a", tiny_content(storage=storage, dtype=dtype))
    artefact = open_table(tmp_path / "a")
    version = open_version(artefact, tiny_compressor())
    assert version.layer_ids == (1, 2)
    for layer in version.layer_ids:
        assert isinstance(version.tiers[layer], tier)
        assert torch.equal(
            version.modules[layer].kv_weight, artefact.module_state(layer)["kv_weight"]
        )
        rows = artefact.rows(layer)
        ids = getattr(rows, "row_ids", np.arange(rows.num_rows))
        out = torch.empty(len(ids), rows.row_dim, dtype=torch.bfloat16)
        version.tiers[layer].gather(ids, out)
        assert torch.equal(out, rows.values.bfloat16())


def test_the_id_depends_on_the_content(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content(dtype="int4"))
    write_artefact(tmp_path / "b", tiny_content(dtype="bfloat16"))
    ids = {open_version(open_table(tmp_path / n), tiny_compressor()).id for n in ("a", "b")}
    assert len(ids) == 2


def test_last_release_is_passed_on(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content())
    released = []
    version = open_version(
        open_table(tmp_path / "a"), tiny_compressor(), on_last_release=lambda: released.append(1)
    )
    version.release()
    assert released == [1]


def test_another_tokenizer_is_refused(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content())
    with pytest.raises(MismatchError, match="token classes"):
        open_version(open_table(tmp_path / "a"), tiny_compressor(num_classes=50))


def test_weights_of_another_shape_are_refused(tmp_path) -> None:
    folder = tmp_path / "a"
    write_artefact(folder, tiny_content())
    name = "module.safetensors"
    weights = load_file(folder / name)
    save_file({**weights, "layers.1.kv_weight": torch.zeros(3, 3)}, folder / name)
    blob = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(MismatchError, match=r"module\.safetensors: weights of layer 1.*\(3, 3\)"):
        open_version(open_table(folder), tiny_compressor())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("storage", ["sparse", "dense"])
def test_packed_tables_give_equal_rows_in_dram_and_on_the_ssd(tmp_path, storage, dtype) -> None:
    source_dtype = "bfloat16" if storage == "sparse" else "float32"
    write_artefact(tmp_path / "a", tiny_content(storage=storage, dtype=source_dtype))
    source = open_table(tmp_path / "a")
    pack_artefact(source, tmp_path / "b", dtype)
    artefact = open_table(tmp_path / "b")
    assert artefact.layout == source.layout
    assert artefact.manifest.training["packed_from"]["storage"] == storage
    versions = [open_version(artefact, tiny_compressor(), memory) for memory in MEMORIES]
    assert len({version.id for version in versions}) == 1
    for layer in (1, 2):
        read = []
        for version, name in zip(versions, NAMES, strict=True):
            tier = version.tiers[layer]
            assert tier.name == name
            ids = np.random.default_rng(0).integers(0, tier.num_rows, 3000)
            read.append(torch.empty(3000, tier.row_dim, dtype=torch.bfloat16))
            tier.gather(ids, read[-1])
        assert all(torch.equal(read[0], other) for other in read)
        if dtype == "bfloat16":
            whole = RowsReader(source.rows(layer)).read(0, tier.num_rows).bfloat16()
            assert torch.equal(read[0], whole[torch.from_numpy(ids)])


def test_a_sparse_artefact_cannot_stay_on_the_ssd(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content())
    with pytest.raises(ConfigError, match=r"'ssd' for a sparse artefact.*; accepted: .*convert"):
        open_version(open_table(tmp_path / "a"), tiny_compressor(), MemoryConfig(tier="ssd"))


@pytest.mark.parametrize("tier", ["dram", "ssd"])
def test_a_damaged_packed_table_is_refused(tmp_path, tier) -> None:
    write_artefact(tmp_path / "a", tiny_content())
    pack_artefact(open_table(tmp_path / "a"), tmp_path / "b", "int8")
    path = tmp_path / "b" / "table-layer2.safetensors"
    blob = bytearray(path.read_bytes())
    blob[-4000] ^= 1
    path.write_bytes(blob)
    artefact = open_table(tmp_path / "b")
    with pytest.raises(MismatchError, match=r"table-layer2.*sha256 of chunk 0"):
        open_version(artefact, tiny_compressor(), MemoryConfig(tier=tier))
    quick = MemoryConfig(tier="ssd", verify="header")
    assert "as told" in open_version(artefact, tiny_compressor(), quick).why_tiers
    path.write_bytes(blob[:-4096])
    with pytest.raises(MismatchError, match=r"table-layer2.*bytes"):
        open_table(tmp_path / "b")


@pytest.mark.parametrize("kind", ["sparse", "packed"])
def test_what_was_measured_is_told_and_decides(tmp_path, kind) -> None:
    artefact = _artefact(tmp_path, kind)
    version = open_version(artefact, tiny_compressor())
    assert re.search(r"random rows took [0-9.e-]+ us each \([0-9,]+ rows/s\)", version.why_tiers)
    assert ("hot cache off: the rows are in memory" in version.why_tiers) == (kind == "packed")
    if usable_cores().count >= 2:
        assert INLINE_RANGE[0] <= version.inline_limit.max_rows <= INLINE_RANGE[1]
        assert "handing over takes" in version.inline_limit.why


@pytest.mark.parametrize(
    ("told", "limit", "why"),
    [({"inline_max_rows": 9}, 9, "as told"), ({"tier": "ssd"}, 0, "may wait for ssd"),
     ({"tier": "ssd", "inline_max_rows": 9}, 0, "may wait for")],
)  # fmt: skip
def test_the_inline_limit_as_told_or_as_the_tier_wants_it(tmp_path, told, limit, why) -> None:
    config = MemoryConfig.from_dict(told)
    found = open_version(_artefact(tmp_path, "packed"), tiny_compressor(), config).inline_limit
    assert found.max_rows == limit
    assert why in found.why


def test_rows_that_cannot_be_measured_are_served_as_before(tmp_path, monkeypatch) -> None:
    def fail(self, unique):
        raise TierError("no rows now")

    monkeypatch.setattr("engram_core.store.disk.DiskTier._read", fail)
    version = open_version(
        _artefact(tmp_path, "packed"), tiny_compressor(), MemoryConfig(tier="ssd")
    )
    assert version.why_tiers.endswith("hot cache on: a tenth of the rows")
    assert version.tiers[1].name == "hot"


def test_a_cache_that_has_no_room_is_refused(tmp_path) -> None:
    config = MemoryConfig(tier="ssd", hot_cache="on", hot_cache_bytes=100)
    with pytest.raises(ConfigError, match="budget_bytes is"):
        open_version(_artefact(tmp_path, "packed"), tiny_compressor(), config)


@pytest.mark.parametrize("value", [-1, 1.5, "all", True, None])
def test_an_inline_limit_that_is_none_is_refused(value) -> None:
    sentence = "inline_max_rows is .*; accepted: auto, or a whole number >= 0"
    with pytest.raises(ConfigError, match=sentence):
        MemoryConfig.from_dict({"inline_max_rows": value})


def _artefact(tmp_path, kind):
    write_artefact(tmp_path / "a", tiny_content())
    source = open_table(tmp_path / "a")
    if kind == "packed":
        pack_artefact(source, tmp_path / "b", "int8")
    return open_table(tmp_path / ("b" if kind == "packed" else "a"))
