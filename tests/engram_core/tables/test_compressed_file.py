"""Compressed artefacts: expanded bit by bit, checked at every step, and never served."""

import hashlib
import io
import json
import sys
from dataclasses import replace

import pytest
import torch
import zstandard
from artefacts import tiny_compressor, tiny_content

from engram_core.assembly import open_version
from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.row_shard import shard_of
from engram_core.tables import (
    compressed_file,
    native,
    open_table,
    packed_writer,
    write_artefact,
    zstd_frames,
)
from engram_core.tables.convert import pack_artefact
from engram_core.tables.packed_file import sum_of_chunks
from engram_core.tables.records import PACKED_DTYPES

TABLE = "table-layer1.safetensors.zst"
ROWS = {"rows_per_head": (5003, 5003), "head_dim": 32}


@pytest.fixture
def small_chunks(monkeypatch):
    """Several frames in a small table; no multiple of a page, as no chunk has to be one."""
    for module in (compressed_file, native, packed_writer, zstd_frames):
        monkeypatch.setattr(module, "CHUNK_BYTES", 100_000)


@pytest.fixture
def shelf(tmp_path, small_chunks):
    """``plain``, packed as int8, and ``small``, the same compressed."""
    write_artefact(tmp_path / "a", tiny_content(storage="dense", dtype="bfloat16", **ROWS))
    pack_artefact(open_table(tmp_path / "a"), tmp_path / "plain", "int8")
    pack_artefact(open_table(tmp_path / "plain"), tmp_path / "small", "int8", compression="zstd")
    return tmp_path


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", PACKED_DTYPES)
@pytest.mark.parametrize("storage", ["sparse", "dense"])
def test_a_round_trip_gives_the_same_bytes(tmp_path, small_chunks, storage, dtype):
    write_artefact(tmp_path / "a", tiny_content(storage=storage, dtype="bfloat16", **ROWS))
    pack_artefact(open_table(tmp_path / "a"), tmp_path / "plain", dtype)
    pack_artefact(open_table(tmp_path / "plain"), tmp_path / "small", dtype, compression="zstd")
    pack_artefact(open_table(tmp_path / "small"), tmp_path / "back", dtype)
    assert files(tmp_path / "back") == files(tmp_path / "plain")
    assert open_table(tmp_path / "small").content == open_table(tmp_path / "plain").content
    pack_artefact(open_table(tmp_path / "a"), tmp_path / "direct", dtype, compression="zstd")
    same = {name for name in files(tmp_path / "small") if name.endswith(".zst")}
    assert {files(tmp_path / "direct")[name] for name in same} == {
        files(tmp_path / "small")[name] for name in same
    }


def test_it_has_the_rows_and_says_so(shelf):
    plain, small = open_table(shelf / "plain"), open_table(shelf / "small")
    assert small.manifest.compression == "zstd"
    assert json.loads((shelf / "small" / "manifest.json").read_text())["format_version"] == 3
    for layer in (1, 2):
        table = small.compressed(layer)
        assert len(table.record.frame_bytes) > 3
        last = table.num_rows
        for start, stop in ((0, 1), (0, last), (777, 9001), (last - 1, last)):
            assert torch.equal(table.read(start, stop), plain.rows(layer).read(start, stop))
        done = []
        table.verify(done.append)
        assert sum(done) == table.expanded_bytes


def test_any_zstandard_program_expands_it(shelf):
    compressed = io.BytesIO((shelf / "small" / TABLE).read_bytes())
    reader = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)
    assert reader.read() == (shelf / "plain" / TABLE.removesuffix(".zst")).read_bytes()


def test_it_can_be_repacked(shelf):
    pack_artefact(open_table(shelf / "small"), shelf / "int4", "int4")
    pack_artefact(open_table(shelf / "plain"), shelf / "same", "int4")
    assert files(shelf / "int4") == files(shelf / "same")


def test_it_is_not_served_and_says_what_to_do(shelf):
    artefact = open_table(shelf / "small")
    for serve in (lambda: open_version(artefact, tiny_compressor()), lambda: shard_of(artefact)):
        with pytest.raises(ArtefactError, match=r"small is compressed \(zstd\).*--compress none"):
            serve()


def edit_record(shelf, change, name=TABLE):
    path = shelf / "small" / "manifest.json"
    data = json.loads(path.read_text())
    change(data["files"][name])
    path.write_text(json.dumps(data))


def replace_frame(shelf, expanded):
    """Another first frame with true sums of its own: what those cannot catch."""
    path = shelf / "small" / TABLE
    record = open_table(shelf / "small").table_record(1)
    frame = zstandard.ZstdCompressor().compress(expanded)
    path.write_bytes(frame + path.read_bytes()[record.frame_bytes[0] :])
    sums = (hashlib.sha256(frame).hexdigest(), *record.chunks[1:])

    def change(data):
        data["chunks"], data["sha256"] = list(sums), sum_of_chunks(sums)
        data["frame_bytes"][0] = len(frame)
        data["bytes"] = path.stat().st_size

    edit_record(shelf, change)


def mismatch(shelf, what):
    with pytest.raises(MismatchError) as caught:
        open_table(shelf / "small").compressed(1).verify()
    text = str(caught.value)
    assert text.startswith(f"{TABLE}: {what}")
    assert f"expected {caught.value.expected}, found {caught.value.found}" in text
    assert caught.value.expected != caught.value.found


def test_damage_is_named_with_both_values(shelf):
    path = shelf / "small" / TABLE
    blob = path.read_bytes()
    path.write_bytes(blob[:-1])
    mismatch(shelf, "bytes")
    path.write_bytes(bytes([*blob[:50], blob[50] ^ 1, *blob[51:]]))
    mismatch(shelf, "sha256 of frame 0")
    path.write_bytes(blob)
    open_table(shelf / "small").compressed(1).verify()
    path.unlink()
    with pytest.raises(ArtefactError, match=rf"{TABLE} cannot be read"):
        open_table(shelf / "small")


def test_a_frame_that_expands_to_something_else(shelf):
    first = bytearray((shelf / "plain" / TABLE.removesuffix(".zst")).read_bytes()[:100_000])
    replace_frame(shelf, first[:-1])
    mismatch(shelf, "bytes of a frame when expanded")
    first[-1] ^= 1
    replace_frame(shelf, first)
    mismatch(shelf, "sha256 of chunk 0")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r: r.update(bytes=r["bytes"] + 1), "bytes"),
        (lambda r: r["frame_bytes"].append(1), "bytes of the frames"),
        (lambda r: r.update(sha256="0" * 64), "sha256 of the frames"),
        (lambda r: r["expanded"].update(sha256="0" * 64), "sha256 of the chunks"),
        (lambda r: r["expanded"].update(bytes=4096), "number of chunks"),
        (lambda r: r["expanded"].update(bytes=r["expanded"]["bytes"] - 1), "bytes when expanded"),
    ],
)
def test_records_that_contradict_each_other(shelf, change, what):
    edit_record(shelf, change)
    mismatch(shelf, what)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("expanded"),
        lambda r: r.update(expanded="large"),
        lambda r: r.update(frame_bytes=[0]),
    ],
)
def test_malformed_records_are_refused(shelf, change):
    edit_record(shelf, change)
    with pytest.raises(ArtefactError, match=r"manifest\.json is not valid|without what it expands"):
        open_table(shelf / "small")


def test_only_packed_tables_are_compressed(tmp_path):
    with pytest.raises(ConfigError, match="compression is 'zstd'; accepted: none, or zstd for"):
        write_artefact(tmp_path / "a", replace(tiny_content(), compression="zstd"))
    write_artefact(tmp_path / "a", tiny_content())
    path = tmp_path / "a" / "manifest.json"
    data = json.loads(path.read_text())
    data["tables"]["compression"] = "zstd"
    path.write_text(json.dumps(data))
    with pytest.raises(ArtefactError, match="accepted: compression none, or zstd if packed"):
        open_table(tmp_path / "a")


def test_without_the_library_it_says_what_to_install(shelf, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    plain = open_table(shelf / "plain")
    with pytest.raises(ConfigError, match=r"pip install 'engram-server\[compress\]'"):
        pack_artefact(plain, shelf / "new", "int8", compression="zstd")
    assert not (shelf / "new").exists()
    with pytest.raises(ConfigError, match="needs zstandard, which is not installed"):
        open_table(shelf / "small").compressed(1).verify()
