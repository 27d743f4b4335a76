"""DeepSeek-V4.1's released names: vectors, records bit by bit, and splicing at one stream."""

import json

import numpy as np
import pytest
import torch
from golden_cases import V41, V41_FORM, cases
from imports import (
    TINY_V41,
    embeddings_of,
    tiny_v41_tensors,
    v41_tensors,
    version_of,
    write_config,
    write_shards,
)
from models import tiny_llama
from safetensors.torch import load_file, save_file

from engram_core.compression import TokenCompressor
from engram_core.errors import ArtefactError, ConfigError, MismatchError, UnsupportedModelError
from engram_core.splice import attach
from engram_core.tables import RecordReader, open_foreign

CASES = cases(V41_FORM)
SMALL = CASES[1]


@pytest.fixture
def folder(tmp_path):
    write_config(tmp_path / "v41", SMALL.meta["config"])
    write_shards(tmp_path / "v41", v41_tensors(SMALL))
    return tmp_path / "v41"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("sharded", [True, False])
def test_reference_vectors(case, sharded, tmp_path):
    write_config(tmp_path, case.meta["config"])
    if sharded:
        write_shards(tmp_path, v41_tensors(case))
    else:
        rest = {"layers.0.attn.wq_a.weight": torch.zeros(3)}
        save_file({**v41_tensors(case), **rest}, tmp_path / "model.safetensors")
    imported = open_foreign(tmp_path, tokenizer=TokenCompressor(case.class_ids))
    assert (imported.source_format, imported.config) == ("deepseek_v41", case.config)
    memory, tensors = version_of(imported), case.tensors
    live = tensors["text_mask"][0]
    for layer in case.config.layer_ids:
        rows = memory.hasher.row_ids(tensors["input_ids"][0], layer, barrier=~live.numpy())
        offsets = torch.tensor(memory.layout.offsets[layer])
        np.testing.assert_array_equal(rows, tensors[f"hash_ids.{layer}"][0] + offsets)
        table = imported.tables[layer].read(0, imported.tables[layer].num_rows).float()
        embeddings = table[rows].flatten(-2)
        torch.testing.assert_close(embeddings, tensors[f"embeddings.{layer}"][0], atol=0, rtol=0)
        result = memory.modules[layer](tensors["hidden_states"][0], embeddings, live=live)
        torch.testing.assert_close(
            result.hidden, tensors[f"output.{layer}"][0], atol=1e-5, rtol=1e-5
        )


def test_records_are_the_stored_bytes(tmp_path):
    data = load_file(V41 / "v41_fp8_rows.safetensors")
    config = {**TINY_V41, "engram_head_dim": 256, "engram_layer_ids": [3]}
    tensors = tiny_v41_tensors(config)
    payload = tensors["layers.3.engram.embed.weight"].view(torch.uint8)
    payload[100:108] = data["weight_bytes"]
    tensors["layers.3.engram.embed.scale"].view(torch.uint8)[100:108] = data["scale_bytes"]
    write_config(tmp_path, config)
    save_file(tensors, tmp_path / "model.safetensors")
    table = open_foreign(tmp_path).tables[3]
    assert (table.dtype, table.row_dim) == ("float8_e4m3", 256)
    torch.testing.assert_close(table.read(100, 108), data["bf16"], atol=0, rtol=0, equal_nan=True)
    assert isinstance(table, RecordReader)
    records = table.read_records(100, 108)
    assert (records.dtype, records.shape) == (torch.uint8, (8, 256 + 8))
    assert torch.equal(records, torch.cat([data["weight_bytes"], data["scale_bytes"]], dim=1))
    with pytest.raises(IndexError, match="within 0 to"):
        table.read_records(-1, 3)


def opened_tiny(folder, **change):
    config = {**TINY_V41, **change}
    write_config(folder, config)
    write_shards(folder, tiny_v41_tensors(config))
    return open_foreign(folder, tokenizer=TokenCompressor(np.arange(128) % 100))


def test_the_projection_is_scaled_in_blocks(tmp_path):
    imported = opened_tiny(tmp_path)
    stored = tiny_v41_tensors(TINY_V41)
    payload = stored["layers.2.engram.wkv.weight"].float()
    scales = stored["layers.2.engram.wkv.scale"].float()
    found = imported.modules[2]["kv_weight"]
    assert found.dtype == torch.float32
    for row, column in ((0, 0), (31, 33), (63, 127), (32, 64)):
        expected = payload[row, column] * scales[row // 32, column // 32]
        assert found[row, column] == expected
    assert torch.equal(
        imported.modules[2]["query_norm"], stored["layers.2.engram.q_weight"].float()
    )


def test_with_one_stream_it_is_spliced_into_an_ordinary_decoder(tmp_path):
    model, memory = tiny_llama(), version_of(opened_tiny(tmp_path))
    tokens, seen = torch.randint(0, 128, (1, 9), generator=torch.Generator().manual_seed(3)), {}
    plain = model(tokens).logits
    layers = model.model.layers
    with attach(model, memory):
        handle = layers[1].register_forward_pre_hook(lambda m, a: seen.setdefault("after", a[0]))
        changed = model(tokens).logits
        handle.remove()
    assert not torch.allclose(changed, plain, atol=1e-2)
    before = layers[0](
        model.model.embed_tokens(tokens),
        position_embeddings=model.model.rotary_emb(plain, torch.arange(9)[None]),
    )
    embeddings = embeddings_of(memory, tokens[0], 1)
    expected = memory.modules[1](before.view(9, 1, -1), embeddings).hidden
    torch.testing.assert_close(seen["after"].view(9, 1, -1), expected)


def test_more_streams_need_hyper_connections(tmp_path):
    memory = version_of(opened_tiny(tmp_path, hc_mult=4))
    with pytest.raises(MismatchError, match=r"hidden streams \(.*expected 4, found 1"):
        attach(tiny_llama(), memory)


def test_a_decoder_with_hyper_connections_is_refused(tmp_path):
    memory = version_of(opened_tiny(tmp_path))
    model = tiny_llama()
    model.config.model_type = "deepseek_v4"
    with pytest.raises(UnsupportedModelError, match="accepted: a decoder with one hidden stream"):
        attach(model, memory)
    model = tiny_llama(hc_mult=4)
    with pytest.raises(UnsupportedModelError, match="hyper-connections"):
        attach(model, memory)


def test_class_maps(folder):
    imported = open_foreign(folder)
    assert (imported.compressor, imported.pad_class) == (None, None)
    assert imported.compressed_size == SMALL.meta["compressed_size"]
    with pytest.raises(MismatchError, match=r"token classes .*expected 763, found 762"):
        open_foreign(folder, tokenizer=TokenCompressor(np.arange(762)))
    edit(folder, vocab_size=900)
    with pytest.raises(MismatchError, match=r"number of token ids .*expected 900, found 904"):
        open_foreign(folder, tokenizer=TokenCompressor(SMALL.class_ids))
    edit(folder, vocab_size=904)
    imported = open_foreign(folder, tokenizer=TokenCompressor(SMALL.class_ids))
    assert (imported.num_token_ids, imported.pad_class) == (904, SMALL.meta["pad_id_compressed"])


def test_without_a_declared_size_the_tokenizer_is_needed(folder):
    edit(folder, engram_compressed_vocab_size=None)
    with pytest.raises(ArtefactError, match="engram_compressed_vocab_size is None"):
        open_foreign(folder)
    edit(folder, engram_compressed_vocab_size=...)
    with pytest.raises(ConfigError, match="the key, or the model's tokenizer"):
        open_foreign(folder)
    imported = open_foreign(folder, tokenizer=TokenCompressor(SMALL.class_ids))
    assert imported.compressed_size == 763


def edit(folder, **change):
    path = folder / "config.json"
    data = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engram_num_embeddings": [660, 865]}, r"table rows .*\(660, 865\), found \(660, 864\)"),
        ({"engram_vocab_size": 102, "engram_num_embeddings": ...}, r"rows of layer 1 .*found 660"),
        ({"engram_vocab_size": 10**9, "engram_num_embeddings": ...}, r"table rows .*found 660"),
        ({"engram_layer_ids": [1, 15]}, r"lacks layers.15.engram.embed.weight"),
        ({"engram_layer_ids": [1], "engram_num_embeddings": ...}, r"unexpected are layers.14"),
        ({"engram_n_heads": "2"}, r"engram_n_heads is '2'; accepted: a whole number"),
        ({"engram_head_dim": ...}, r"lacks engram_head_dim"),
        ({"engram_colour": 1}, r"unknown configuration key\(s\) engram_colour"),
        ({"rms_norm_eps": "small"}, r"rms_norm_eps is 'small'"),
        ({"hc_mult": 4}, r"shape of .*q_weight .*expected \(4, 32\), found \(2, 32\)"),
        ({"engram_head_dim": 64}, r"shape of .*expected \(660, 64\), found \(660, 32\)"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder, change, message):
    edit(folder, **change)
    with pytest.raises((ArtefactError, ConfigError), match=message):
        open_foreign(folder)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("embed.weight", torch.zeros(660, 32), r"dtype of .*expected F8_E4M3, found F32"),
        ("embed.scale", torch.zeros(660, 1, dtype=torch.uint8), r"expected F8_E8M0, found U8"),
        ("wkv.weight", torch.zeros(96, 192).to(torch.float8_e4m3fn), r"lacks layers.1.*wkv.scale"),
        ("q_weight", None, r"lacks layers.1.engram.q_weight"),
        ("conv_weight", torch.zeros(3), r"unexpected are layers.1.engram.conv_weight"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, name, tensor, message):
    tensors = {**v41_tensors(SMALL), f"layers.1.engram.{name}": tensor}
    write_config(tmp_path, SMALL.meta["config"])
    save_file({k: v for k, v in tensors.items() if v is not None}, tmp_path / "a.safetensors")
    with pytest.raises(ArtefactError, match=message):
        open_foreign(tmp_path)


def test_shards_and_index_must_agree(folder):
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    (folder / "model-00014.safetensors").rename(folder / "x.safetensors")
    with pytest.raises(ArtefactError, match=r"model-00014\.safetensors cannot be read"):
        open_foreign(folder)
    (folder / "x.safetensors").rename(folder / "model-00014.safetensors")
    name = "layers.14.engram.q_weight"
    for place, message in (
        ("model-00001.safetensors", rf"file of {name} .*expected model-00001.*found model-00014"),
        ("../model-00014.safetensors", "accepted: plain file names"),
    ):
        index.write_text(json.dumps({"weight_map": {**places, name: place}}))
        with pytest.raises(ArtefactError, match=message):
            open_foreign(folder)
    extra = "layers.14.engram.conv_weight"
    index.write_text(json.dumps({"weight_map": {**places, extra: "model-00014.safetensors"}}))
    with pytest.raises(ArtefactError, match=f"lacks {extra}, which model.safetensors.index.json"):
        open_foreign(folder)
