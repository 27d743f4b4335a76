"""A DeepSeek-V4.1 checkpoint opened where it lies: what identifies it and what is refused."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from artefacts import tiny_content
from golden_cases import DEMO, cases
from imports import TINY_V41, tiny_v41_tensors, write_config, write_demo
from safetensors.torch import save_file

from engram_core.compression import TokenCompressor
from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.tables import open_foreign, write_artefact
from engram_core.tables.in_place import IN_PLACE, is_in_place, open_in_place, tables_of
from engram_core.tables.manifest import BackboneRecord

MODEL = BackboneRecord("tiny", "f" * 64, hidden_size=32, num_layers=4)
CLASSES = TokenCompressor(np.arange(128) % 100)


def write(folder, tensors=None, **change):
    config = {**TINY_V41, **change}
    write_config(folder, config)
    save_file(tensors or tiny_v41_tensors(config), folder / "model.safetensors")
    os.utime(folder / "model.safetensors", ns=(0, 0))
    return folder


def opened(folder, backbone=MODEL):
    return open_in_place(folder, backbone, CLASSES)


def test_it_is_an_artefact_of_the_served_model(tmp_path):
    artefact = opened(write(tmp_path / "v41"))
    assert (artefact.name, artefact.manifest.storage, artefact.manifest.dtype) == (
        "v41", IN_PLACE, "float8_e4m3",
    )  # fmt: skip
    artefact.check_backbone(MODEL.fingerprint, MODEL.hidden_size, MODEL.num_layers)
    artefact.check_tokenizer(CLASSES)
    with pytest.raises(MismatchError, match="token ids"):
        artefact.check_tokenizer(TokenCompressor(np.arange(99)))
    stored = tiny_v41_tensors(TINY_V41)
    for layer in (1, 2):
        payload, scales = artefact.rows(layer).parts
        assert (payload.num_bytes, scales.num_bytes) == (32, 1)
        raw = payload.path.read_bytes()
        starts = payload.offsets(np.array([0, 7]))
        expected = stored[f"layers.{layer}.engram.embed.weight"].view(torch.uint8)
        for row, start in zip((0, 7), starts.tolist(), strict=True):
            assert raw[start : start + 32] == expected[row].numpy().tobytes()


def test_a_folder_is_told_by_its_configuration(tmp_path):
    assert is_in_place(write(tmp_path / "v41"))
    write_artefact(tmp_path / "native", tiny_content())
    (tmp_path / "native" / "config.json").write_text('{"engram_layer_ids": [1]}')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 32}')
    for name in ("native", "model", "missing", "v41/config.json"):
        assert not is_in_place(tmp_path / name)


def test_a_broken_configuration_says_so(tmp_path):
    folder = write(tmp_path / "v41")
    (folder / "config.json").write_text('{"engram_layer_ids": [1')
    assert is_in_place(folder)
    with pytest.raises(ArtefactError, match=r"config\.json cannot be read as JSON"):
        opened(folder)


def test_the_content_stays_and_follows_every_stored_byte(tmp_path):
    first = opened(write(tmp_path / "a")).content
    assert opened(tmp_path / "a").content == first
    shutil.copytree(tmp_path / "a", tmp_path / "copy")  # with its times
    assert opened(tmp_path / "copy").content == first
    for name in tiny_v41_tensors(TINY_V41):
        tensors = tiny_v41_tensors(TINY_V41)
        tensors[name].view(torch.uint8)[-1, -1] ^= 1
        assert opened(write(tmp_path / "b", tensors)).content != first, name


def test_a_file_written_again_is_another_memory(tmp_path):
    first = opened(write(tmp_path / "a")).content
    os.utime(tmp_path / "a" / "model.safetensors", ns=(0, 1))
    assert opened(tmp_path / "a").content != first


def test_a_large_table_is_sampled_and_its_time_covers_the_rest(tmp_path):
    change = {"engram_vocab_size": 6000}  # 24,000 rows; 16,384 of them are looked at
    tensors = tiny_v41_tensors({**TINY_V41, **change})
    first = opened(write(tmp_path / "a", tensors, **change)).content
    rows = len(tensors["layers.1.engram.embed.weight"])
    assert rows > 1024 * 16
    payload = tensors["layers.1.engram.embed.weight"].view(torch.uint8)
    for row, is_seen in ((0, True), (rows - 1, True), (16, False)):
        payload[row, 0] ^= 1
        found = opened(write(tmp_path / "b", tensors, **change)).content
        assert (found != first) == is_seen
        payload[row, 0] ^= 1
    payload[16, 0] ^= 1
    folder = write(tmp_path / "b", tensors, **change)
    os.utime(folder / "model.safetensors")
    assert opened(folder).content != first


@pytest.mark.parametrize(
    ("change", "model", "message"),
    [
        ({"hidden_size": 64}, MODEL, r"v41: hidden size does not match: expected 64, found 32"),
        ({"engram_layer_ids": [1, 9]}, MODEL, r"layer_ids is \(1, 9\); accepted for tiny: .* 3"),
        ({"engram_head_dim": 48}, MODEL, r"row width is 48; accepted .* a multiple of 32"),
    ],
)
def test_what_the_model_cannot_be_served_with(tmp_path, change, model, message):
    data = {**TINY_V41, **change}
    tensors = tiny_v41_tensors(data)
    if "engram_head_dim" in change:  # the format rounds blocks up, records do not
        for layer in (1, 2):
            rows = len(tensors[f"layers.{layer}.engram.embed.weight"])
            scales = torch.full((rows, 2), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
            tensors[f"layers.{layer}.engram.embed.scale"] = scales
    folder = write(tmp_path / "v41", tensors, **change)
    with pytest.raises((ConfigError, MismatchError), match=message):
        opened(folder, model)


@pytest.mark.parametrize("scale", [torch.float32, torch.uint8])
def test_other_scales_than_the_formats_are_refused(tmp_path, scale):
    tensors = tiny_v41_tensors(TINY_V41)
    name = "layers.1.engram.embed.scale"
    tensors[name] = tensors[name].view(torch.uint8).to(scale)
    with pytest.raises(MismatchError, match=rf"dtype of {name} .*expected F8_E8M0"):
        opened(write(tmp_path / "v41", tensors))


def test_a_file_cut_short_is_refused(tmp_path):
    path = write(tmp_path / "v41") / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(MismatchError, match="file size in bytes"):
        opened(tmp_path / "v41")


def test_other_formats_are_converted_and_not_read_in_place(tmp_path):
    case = cases(DEMO, "m_")[0]
    write_demo(tmp_path / "demo", case)
    memory = open_foreign(tmp_path / "demo", tokenizer=TokenCompressor(case.class_ids))
    assert "engram_layer_ids" not in json.loads((tmp_path / "demo" / "config.json").read_text())
    with pytest.raises(ArtefactError, match="demo is in the format demo, which is not read in p"):
        tables_of(memory, "demo")
