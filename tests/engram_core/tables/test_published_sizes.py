"""Every hash vector through an importer at its published size: 100 GB are opened, not read."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from golden_cases import DEMO, V41, cases, class_map, strip
from imports import write_empty_demo, write_empty_v41
from safetensors.torch import load_file

from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.store.disk import DiskTier
from engram_core.tables import open_foreign
from engram_core.tables.in_place import open_in_place
from engram_core.tables.manifest import BackboneRecord

NARROW = {"hidden_size": 8, "hc_mult": 1}  # the width of the model does not enter the hash


def hasher_of(imported):
    return NgramHasher(imported.layout, imported.compressor.class_ids)


@pytest.mark.parametrize("case", cases(DEMO, "h_"), ids=lambda case: case.name)
def test_demo_hashes(case, tmp_path):
    config = replace(case.config, hidden_size=8, num_streams=1)
    layout = HashLayout.build(config, case.meta["compressed_size"])
    write_empty_demo(tmp_path / "demo", {**case.meta["engram"], **NARROW}, layout)
    imported = open_foreign(tmp_path / "demo", tokenizer=TokenCompressor(case.class_ids))
    hasher, tensors = hasher_of(imported), case.tensors
    for layer in config.layer_ids:
        rows = hasher.row_ids(tensors["input_ids"][0], layer)
        local = rows - np.array(imported.layout.offsets[layer])
        np.testing.assert_array_equal(local, tensors[f"hash_ids.{layer}"][0])
        assert not imported.tables[layer].read(int(rows.max()), int(rows.max()) + 1).any()


def test_demo_defaults(tmp_path):
    full = json.loads((DEMO / "full_default.json").read_text())
    class_ids = class_map(full["tokenizer"])
    config = EngramConfig.from_demo(NARROW)
    layout = HashLayout.build(config, int(class_ids.max()) + 1)
    write_empty_demo(tmp_path / "demo", NARROW, layout)
    imported = open_foreign(tmp_path / "demo", tokenizer=TokenCompressor(class_ids))
    assert [table.num_rows for table in imported.tables.values()] == [10_344_164, 10_348_242]
    for case in full["cases"].values():
        for layer, expected in case["hash_ids"].items():
            rows = hasher_of(imported).row_ids(case["input_ids"][0], int(layer))
            local = rows - np.array(imported.layout.offsets[int(layer)])
            np.testing.assert_array_equal(local, expected[0])


@pytest.mark.parametrize("name", ["v41_full_hash", "v41_small_hash"])
def test_v41_hashes(name, tmp_path):
    stored = json.loads((V41 / f"{name}.json").read_text())
    data = {**stored["config"], **NARROW}
    class_ids = stored.get("token_map")
    if class_ids is None:
        class_ids = load_file(V41 / "v41_compressed_map.safetensors")["token_map_int32"].numpy()
    config = EngramConfig.from_v41(data)
    layout = HashLayout.build(config, config.compressed_size)
    write_empty_v41(tmp_path / "v41", data, layout)
    compressor = TokenCompressor(np.asarray(class_ids, dtype=np.int64))
    imported = open_foreign(tmp_path / "v41", tokenizer=compressor)
    assert tuple(t.num_rows for t in imported.tables.values()) == config.expected_rows
    for case in stored["cases"]:
        listed = [case.get(f"rows_layer{layer}") for layer in config.layer_ids]
        for layer, rows in zip(config.layer_ids, case.get("rows", listed), strict=True):
            found = hasher_of(imported).row_ids(case["token_ids"], layer, barrier=case.get("dead"))
            np.testing.assert_array_equal(found, rows, err_msg=case["name"])
            last = max(map(max, rows))
            assert not imported.tables[layer].read_records(last, last + 1).any()


def test_v41_in_place(tmp_path):
    stored = json.loads((V41 / "v41_full_hash.json").read_text())
    data = {**stored["config"], **NARROW}
    config = EngramConfig.from_v41(data)
    layout = HashLayout.build(config, config.compressed_size)
    write_empty_v41(tmp_path / "v41", data, layout)
    class_ids = load_file(V41 / "v41_compressed_map.safetensors")["token_map_int32"].numpy()
    compressor = TokenCompressor(class_ids.astype(np.int64))
    model = BackboneRecord("narrow", "f" * 64, NARROW["hidden_size"], max(config.layer_ids) + 1)
    artefact = open_in_place(tmp_path / "v41", model, compressor)
    assert artefact.content == open_in_place(tmp_path / "v41", model, compressor).content
    table = artefact.rows(config.layer_ids[-1])
    payload, scales = table.parts
    last = table.num_rows - 1
    with payload.path.open("r+b") as file:
        for part, byte in ((payload, 0x38), (scales, 128)):  # 1.0, times 2
            file.seek(int(part.offsets(np.array([last]))[0]))
            file.write(bytes([byte]) * part.num_bytes)
    table = open_in_place(tmp_path / "v41", model, compressor).rows(config.layer_ids[-1])
    rows = torch.empty(2, config.head_dim, dtype=torch.bfloat16)
    DiskTier(table).gather(np.array([last, 0]), rows)
    assert (rows[0] == 2).all()
    assert (rows[1] == 0).all()


@pytest.mark.parametrize(("kind", "dtype"), [("f32", torch.float32), ("bf16", torch.bfloat16)])
def test_v41_gate(kind, dtype, tmp_path):
    vectors = strip(load_file(V41 / "v41_gate_small.safetensors"), f"{kind}.")
    data = {
        "engram_layer_ids": [1], "engram_max_ngram_size": 4, "engram_n_heads": 2,
        "engram_head_dim": 32, "engram_vocab_size": 101, "engram_compressed_vocab_size": 64,
        "hidden_size": 64, "hc_mult": 4,
    }  # fmt: skip
    layout = HashLayout.build(EngramConfig.from_v41(data), 64)
    names = {"wkv.weight": "wkv", "q_weight": "q_weight", "k_weight": "k_weight"}
    values = {f"layers.1.engram.{to}": vectors[name].float() for to, name in names.items()}
    write_empty_v41(tmp_path / "v41", data, layout, values)
    module = EngramModule(layout.config, 1, dtype=dtype).requires_grad_(False)
    module.load_state_dict(open_foreign(tmp_path / "v41").modules[1])
    for suffix, live in (("", None), ("_masked", vectors["mask"].bool())):
        result = module(vectors["x"], vectors["emb"], live=live)
        close = {"atol": 1e-5, "rtol": 1e-5}
        torch.testing.assert_close(result.gates, vectors[f"gate{suffix}"], **close)
        torch.testing.assert_close(result.hidden, vectors[f"out{suffix}"], **close)
