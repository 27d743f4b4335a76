"""Artefacts: what was written is read; whatever does not agree is refused with both values."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from artefacts import BACKBONE, tiny_compressor, tiny_content
from safetensors.torch import load_file, save_file

from engram_core.errors import ArtefactError, MismatchError
from engram_core.tables import open_table, write_artefact
from engram_core.tables.rows import SparseRows

TABLE = "table-layer1.safetensors"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("artefacts") / "tiny"
    write_artefact(path, tiny_content())
    return path


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "tiny")


def edit_manifest(folder, *keys, value):
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(data))


def replace_file(folder, name, tensors):
    """Another file with a true checksum: what the checksum cannot catch."""
    save_file(tensors, folder / name)
    blob = (folder / name).read_bytes()
    record = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    edit_manifest(folder, "files", name, value=record)


def mismatch(folder, *texts):
    with pytest.raises(MismatchError) as caught:
        open_table(folder)
    for text in (*texts, str(caught.value.expected), str(caught.value.found)):
        assert text in str(caught.value)
    assert caught.value.expected != caught.value.found
    assert str(folder.parent) not in str(caught.value), "no paths in error texts"


@pytest.mark.parametrize(
    ("storage", "dtype"),
    [("sparse", "int4"), ("sparse", "bfloat16"), ("dense", "float32"), ("dense", "bfloat16"),
     ("dense", "float16")],
)  # fmt: skip
def test_round_trip(tmp_path, storage, dtype) -> None:
    content = tiny_content(storage=storage, dtype=dtype)
    write_artefact(tmp_path / "a", content)
    artefact = open_table(tmp_path / "a")
    assert artefact.config == content.layout.config
    assert artefact.layout == content.layout
    assert artefact.manifest.training == {"made": "for a test"}
    assert (artefact.manifest.storage, artefact.manifest.dtype) == (storage, dtype)
    for layer, rows in content.tables.items():
        read = artefact.rows(layer)
        tolerance = 0.08 if dtype == "int4" else 0.01
        assert (read.values.float() - rows.values).abs().max() < tolerance * rows.values.abs().max()
        if isinstance(rows, SparseRows):
            assert np.array_equal(read.row_ids, rows.row_ids)
        for name, weight in content.modules[layer].items():
            assert torch.equal(artefact.module_state(layer)[name], weight)


def test_content_follows_the_files(tmp_path, written) -> None:
    write_artefact(tmp_path / "same", tiny_content())
    write_artefact(tmp_path / "other", tiny_content(dtype="bfloat16"))
    assert open_table(tmp_path / "same").content == open_table(written).content
    assert open_table(tmp_path / "other").content != open_table(written).content


def test_truncated_file(folder) -> None:
    blob = (folder / TABLE).read_bytes()
    (folder / TABLE).write_bytes(blob[:-1])
    mismatch(folder, TABLE, "bytes", str(len(blob)), str(len(blob) - 1))


def test_flipped_byte(folder) -> None:
    blob = bytearray((folder / TABLE).read_bytes())
    blob[-1] ^= 1
    (folder / TABLE).write_bytes(blob)
    mismatch(folder, TABLE, "sha256")


def test_missing_file(folder) -> None:
    (folder / TABLE).unlink()
    with pytest.raises(ArtefactError, match=TABLE):
        open_table(folder)


def test_missing_manifest_and_missing_folder(folder) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(ArtefactError, match=r"manifest\.json is missing"):
        open_table(folder)
    with pytest.raises(ArtefactError, match="nowhere is no folder"):
        open_table(folder / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", "\xff", '{"format": 1}'])
def test_manifest_that_is_none(folder, text) -> None:
    (folder / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(ArtefactError, match=r"manifest\.json"):
        open_table(folder)


def test_unknown_format_version(folder) -> None:
    edit_manifest(folder, "format_version", value=4)
    mismatch(folder, "manifest.json", "format_version")


@pytest.mark.parametrize(
    ("keys", "value", "what"),
    [
        (("config", "seed"), 7, "multipliers of layer 1 for seed 7"),
        (("layout", "multipliers", "1"), [3, 5, 7], "multipliers of layer 1"),
        (("layout", "primes", "2"), [[211, 223], [227, 229]], "primes of layer 2"),
        (("layout", "offsets", "1"), [0, 1, 2, 3], "offsets of layer 1"),
        (("layout", "rows", "1"), 9, "rows of layer 1"),
        (("tokenizer", "compressed_size"), 99, "compressed_size"),
        (("config", "rows_per_head"), [307, 307], "primes of layer 1"),
        (("config", "head_dim"), 16, "table rows and width"),
        (("tables", "dtype"), "bfloat16", "tensors"),
        (("tables", "storage"), "dense", "tables"),
    ],
)
def test_contradictions(folder, keys, value, what) -> None:
    edit_manifest(folder, *keys, value=value)
    with pytest.raises(ArtefactError, match=what):
        open_table(folder)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("files", TABLE), {"bytes": "1", "sha256": "x"}),
        (("files",), {}),
        (("config", "colour"), "red"),
        (("tokenizer",), {}),
        (("backbone", "hidden_size"), True),
        (("tables",), {"storage": "cloud", "dtype": "int4"}),
        (("files", "../outside"), {"bytes": 1, "sha256": "x"}),
        (("layout",), None),
    ],
)
def test_malformed_manifest_is_refused_by_name(folder, keys, value) -> None:
    edit_manifest(folder, *keys, value=value)
    with pytest.raises(ArtefactError, match=r"manifest\.json"):
        open_table(folder)


def test_rows_that_do_not_fit_the_primes(folder) -> None:
    table = load_file(folder / TABLE)
    replace_file(folder, TABLE, {**table, "row_ids": table["row_ids"] + 1_000_000})
    with pytest.raises(ArtefactError, match=rf"{TABLE}.*row ids"):
        open_table(folder)


def test_row_written_twice(folder) -> None:
    table = load_file(folder / TABLE)
    replace_file(folder, TABLE, {**table, "row_ids": torch.zeros_like(table["row_ids"])})
    with pytest.raises(ArtefactError, match=rf"{TABLE}.*ascending"):
        open_table(folder)


def test_dense_table_with_another_row_count(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content(storage="dense", dtype="float16"))
    table = load_file(tmp_path / "a" / TABLE)
    replace_file(tmp_path / "a", TABLE, {"rows": table["rows"][:-1].contiguous()})
    mismatch(tmp_path / "a", TABLE, "table rows and width")


def test_a_file_that_is_no_safetensors(folder) -> None:
    blob = b"not a tensor in sight"
    (folder / TABLE).write_bytes(blob)
    record = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    edit_manifest(folder, "files", TABLE, value=record)
    with pytest.raises(ArtefactError, match=TABLE):
        open_table(folder)


def test_foreign_module_tensor(folder) -> None:
    name = "module.safetensors"
    module = load_file(folder / name)
    replace_file(folder, name, {**module, "layers.9.kv_weight": torch.zeros(1)})
    with pytest.raises(ArtefactError, match=rf"{name}.*layers\.9"):
        open_table(folder)


def test_open_artefact_outlives_its_files(folder) -> None:
    artefact = open_table(folder)
    before = artefact.rows(1).values.clone()
    with (folder / TABLE).open("r+b") as file:
        file.truncate(16)
    assert torch.equal(artefact.rows(1).values, before)


def test_tokenizer_check(written) -> None:
    artefact = open_table(written)
    artefact.check_tokenizer(tiny_compressor())
    other = tiny_compressor()
    other.class_ids[[5, 6]] = other.class_ids[[6, 5]]
    cases = {
        "number of token ids": tiny_compressor(num_ids=120),
        "number of token classes": tiny_compressor(num_classes=90),
        "tokenizer fingerprint": other,
    }
    for what, compressor in cases.items():
        with pytest.raises(MismatchError, match=f"tiny: {what}"):
            artefact.check_tokenizer(compressor)


def test_backbone_check(written) -> None:
    artefact = open_table(written)
    right = (BACKBONE.fingerprint, BACKBONE.hidden_size, BACKBONE.num_layers)
    artefact.check_backbone(*right)
    wrong = {
        "backbone fingerprint": ("0" * 64, *right[1:]),
        "hidden size": (right[0], 64, right[2]),
        "decoder layers": (*right[:2], 5),
    }
    for what, values in wrong.items():
        with pytest.raises(MismatchError, match=what):
            artefact.check_backbone(*values)
