"""`engram-server table verify`: every kind of damage is named, with what was expected and found."""

import hashlib
import json
import struct
from pathlib import Path

import pytest
from artefacts import tiny_content
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from engram_core.compression import TokenCompressor
from engram_core.tables import open_table, write_artefact
from engram_core.tables.convert import pack_artefact
from engram_core.tables.packed_file import sum_of_chunks
from server.cli import main

TOKENIZERS = Path(__file__).parents[1] / "golden" / "demo_v1" / "tokenizers"
TABLE = "table-layer1.safetensors"
MODULE = "module.safetensors"


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """``plain``, ``packed`` and ``small`` (compressed): the same rows."""
    monkeypatch.setenv("ENGRAM_SERVER_CACHE_DIR", str(tmp_path / "cache"))
    tokenizer = Tokenizer.from_file(str(TOKENIZERS / "tiny_bytelevel" / "tokenizer.json"))
    compressor = TokenCompressor.from_tokenizer(tokenizer)
    content = tiny_content(storage="dense", dtype="bfloat16", compressor=compressor)
    write_artefact(tmp_path / "plain", content)
    plain = open_table(tmp_path / "plain")
    pack_artefact(plain, tmp_path / "packed", "int8")
    pack_artefact(plain, tmp_path / "small", "int8", compression="zstd")
    return tmp_path


def verify(capsys, folder, *flags):
    code = main(["table", "verify", str(folder), *map(str, flags)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def found_wrong(capsys, folder, what, *values, flags=()):
    code, out, err = verify(capsys, folder, *flags)
    said = [line for line in err.splitlines() if not line.startswith("verify: ")]
    assert (code, out, len(said)) == (1, "", 1)
    assert what in said[0]
    assert "does not match: expected " in said[0]
    for value in values:
        assert str(value) in said[0]
    assert str(folder.parent) not in said[0]


def edit_manifest(folder, change):
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def rewrite(folder, name, blob):
    """Other bytes with true sums: what a checksum cannot catch."""
    (folder / name).write_bytes(blob)
    total = hashlib.sha256(blob).hexdigest()
    record = {"bytes": len(blob), "sha256": total}
    if "chunks" in json.loads((folder / "manifest.json").read_text())["files"][name]:
        record |= {"sha256": sum_of_chunks((total,)), "chunks": [total]}
    edit_manifest(folder, lambda data: data["files"].update({name: record}))


def with_header(blob, change):
    """The bytes of a safetensors file with another header of the same length."""
    length = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    return blob[:8] + text.ljust(length) + blob[8 + length :]


@pytest.mark.parametrize("name", ["plain", "packed", "small"])
def test_whole_artefacts_pass(shelf, capsys, name):
    assert verify(capsys, shelf / name)[0] == 0


@pytest.mark.parametrize("name", ["plain", "packed", "small"])
def test_rows_that_are_not_the_sum_of_the_primes(shelf, capsys, name):
    right = json.loads((shelf / name / "manifest.json").read_text())["layout"]["rows"]["1"]
    edit_manifest(shelf / name, lambda data: data["layout"]["rows"].update({"1": right + 1}))
    found_wrong(capsys, shelf / name, "rows of layer 1", right, right + 1)


@pytest.mark.parametrize("fact", ["primes", "multipliers", "offsets"])
def test_constants_that_the_seed_does_not_give(shelf, capsys, fact):
    def change(data):
        values = data["layout"][fact]["2"]
        values[0] = [3, 5] if fact == "primes" else values[0] + 2

    edit_manifest(shelf / "packed", change)
    found_wrong(capsys, shelf / "packed", f"{fact} of layer 2 for seed 0")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("compressed_size", 7, "compressed_size"),
        ("num_ids", 3, "number of token ids"),
        ("pad_class", 10**6, "class of the pad token"),
        ("fingerprint", "abc", "length of the tokenizer fingerprint"),
    ],
)
def test_a_class_map_that_cannot_be(shelf, capsys, key, value, what):
    edit_manifest(shelf / "packed", lambda data: data["tokenizer"].update({key: value}))
    found_wrong(capsys, shelf / "packed", what, 3 if key == "fingerprint" else value)


def test_the_class_map_of_another_tokenizer(shelf, capsys):
    flags = ("--tokenizer", TOKENIZERS / "tiny_bytelevel")
    code, out, _ = verify(capsys, shelf / "packed", *flags)
    assert code == 0
    assert out.endswith("; the tokenizer gives its class map\n")
    right = json.loads((shelf / "packed" / "manifest.json").read_text())["tokenizer"]["fingerprint"]
    wrong = "f" * 64
    edit_manifest(shelf / "packed", lambda data: data["tokenizer"].update(fingerprint=wrong))
    assert verify(capsys, shelf / "packed")[0] == 0  # without a tokenizer nobody can tell
    found_wrong(capsys, shelf / "packed", "tokenizer fingerprint", right, wrong, flags=flags)


@pytest.mark.parametrize("name", ["plain", "packed", "small"])
def test_a_cut_table(shelf, capsys, name):
    file = TABLE + (".zst" if name == "small" else "")
    blob = (shelf / name / file).read_bytes()
    (shelf / name / file).write_bytes(blob[:-1])
    found_wrong(capsys, shelf / name, f"{file}: bytes", len(blob), len(blob) - 1)


@pytest.mark.parametrize(
    ("name", "what"),
    [("plain", "sha256"), ("packed", "sha256 of chunk 0"), ("small", "sha256 of frame 0")],
)
def test_a_flipped_byte(shelf, capsys, name, what):
    file = TABLE + (".zst" if name == "small" else "")
    blob = bytearray((shelf / name / file).read_bytes())
    right = hashlib.sha256(blob).hexdigest()
    blob[-1] ^= 1
    (shelf / name / file).write_bytes(blob)
    wrong = hashlib.sha256(blob).hexdigest()
    found_wrong(capsys, shelf / name, f"{file}: {what}", right, wrong)


def test_another_dtype_than_declared(shelf, capsys):
    edit_manifest(shelf / "packed", lambda data: data["tables"].update(dtype="int4"))
    found_wrong(capsys, shelf / "packed", f"{TABLE}: table dtype", "int4", "int8")
    edit_manifest(shelf / "plain", lambda data: data["tables"].update(dtype="float32"))
    found_wrong(capsys, shelf / "plain", f"{TABLE}: tensors", "rows float32", "rows bfloat16")


def test_another_width_than_declared(shelf, capsys):
    for name in ("plain", "packed"):
        edit_manifest(shelf / name, lambda data: data["config"].update(head_dim=16))
        found_wrong(capsys, shelf / name, f"{TABLE}: table rows and width", "16)", "8)")


def test_fewer_rows_than_the_primes(shelf, capsys):
    rows = load_file(shelf / "plain" / TABLE)["rows"]
    save_file({"rows": rows[:-1].contiguous()}, shelf / "cut")
    rewrite(shelf / "plain", TABLE, (shelf / "cut").read_bytes())
    found_wrong(capsys, shelf / "plain", f"{TABLE}: table rows", len(rows), len(rows) - 1)
    blob = (shelf / "packed" / TABLE).read_bytes()

    def change(header):
        header["__metadata__"]["num_rows"] = str(len(rows) - 1)

    rewrite(shelf / "packed", TABLE, with_header(blob, change))
    found_wrong(capsys, shelf / "packed", f"{TABLE}: table rows", len(rows), len(rows) - 1)


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_tensors_that_leave_bytes_out(shelf, capsys, name):
    blob = (shelf / name / TABLE).read_bytes()

    def change(header):
        offsets = header["rows" if name == "plain" else "records"]["data_offsets"]
        offsets[1] -= 2

    rewrite(shelf / name, TABLE, with_header(blob, change))
    found_wrong(capsys, shelf / name, f"{TABLE}: bytes of ")


def test_module_weights_of_another_shape_or_with_a_gap(shelf, capsys):
    weights = load_file(shelf / "packed" / MODULE)
    name = "layers.1.kv_weight"
    right = tuple(weights[name].shape)
    save_file({**weights, name: weights[name][:-1].contiguous()}, shelf / "cut")
    rewrite(shelf / "packed", MODULE, (shelf / "cut").read_bytes())
    found_wrong(capsys, shelf / "packed", f"{MODULE}: weights of layer 1", right)
    blob = (shelf / "plain" / MODULE).read_bytes()
    rewrite(shelf / "plain", MODULE, blob + b"\0")
    found_wrong(capsys, shelf / "plain", f"{MODULE}: file size", len(blob), len(blob) + 1)


def test_more_checksums_than_chunks(shelf, capsys):
    def change(data):
        record = data["files"][TABLE]
        record["chunks"] = record["chunks"] * 2
        record["sha256"] = sum_of_chunks(tuple(record["chunks"]))

    edit_manifest(shelf / "packed", change)
    found_wrong(capsys, shelf / "packed", f"{TABLE}: number of chunks", 1, 2)
