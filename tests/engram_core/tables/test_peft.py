"""Adapters of engram-peft: ids and outputs as the real library computed them."""

import json
import shutil

import numpy as np
import pytest
import torch
from golden_cases import DEMO, ROOT
from imports import embeddings_of, version_of
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from engram_core.assembly import open_version
from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.conv_state import ConvState
from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.layout import HashLayout
from engram_core.splice import attach
from engram_core.tables import (
    ArtefactContent,
    DenseRows,
    RecordReader,
    open_foreign,
    open_table,
    write_artefact,
)
from engram_core.tables.manifest import BackboneRecord, TokenizerRecord

PEFT = ROOT / "peft"
FOLDED, UNFOLDED = "orders23", "orders24_uncompressed"
WEIGHTS = "engram_adapters.safetensors"
BACKBONE = {
    "vocab_size": 912, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
both = pytest.mark.parametrize("name", [FOLDED, UNFOLDED])


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(DEMO / "tokenizers" / "tiny_bytelevel" / "tokenizer.json"))


@pytest.fixture(scope="module")
def model():
    llama = LlamaForCausalLM(LlamaConfig(**BACKBONE)).eval().requires_grad_(False)
    weights = load_file(PEFT / "backbone.safetensors")
    missing, unexpected = llama.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    return llama


@pytest.fixture
def folder(tmp_path):
    """An adapter to damage."""
    target = tmp_path / "adapter"
    target.mkdir()
    for name in ("config.json", WEIGHTS):
        shutil.copy(PEFT / FOLDED / name, target)
    return target


def opened(name, tokenizer):
    # the folder of the vectors also holds the reference, which is no part of the adapter
    data = json.loads((PEFT / name / "config.json").read_text())
    return open_foreign(PEFT / name / WEIGHTS, config=data, tokenizer=tokenizer)


def reference(name):
    return load_file(PEFT / name / "reference.safetensors")


@both
def test_constants_and_classes_are_the_librarys(name, tokenizer):
    imported, expected = opened(name, tokenizer), reference(name)
    assert imported.source_format == "engram_peft"
    np.testing.assert_array_equal(imported.compressor.class_ids, expected["class_map"])
    assert imported.num_token_ids == len(expected["class_map"])
    for layer in imported.config.layer_ids:
        assert [*imported.layout.multipliers[layer]] == expected[f"multipliers.{layer}"].tolist()
        primes = [list(order) for order in imported.layout.primes[layer]]
        assert primes == expected[f"primes.{layer}"].tolist()


@both
@pytest.mark.parametrize("chunk", [24, 5, 1])
def test_row_ids_are_the_librarys(name, tokenizer, chunk):
    hasher, expected = version_of(opened(name, tokenizer)).hasher, reference(name)
    for layer in hasher.layout.config.layer_ids:
        for ids, rows in zip(expected["input_ids"], expected[f"row_ids.{layer}"], strict=True):
            parts = [
                hasher.row_ids(ids[i : i + chunk], layer, history=ids[:i])
                for i in range(0, len(ids), chunk)
            ]
            np.testing.assert_array_equal(np.concatenate(parts), rows)


@both
def test_row_ids_of_decode_steps(name, tokenizer):
    hasher, expected = version_of(opened(name, tokenizer)).hasher, reference(name)
    ids = expected["input_ids"][1].tolist()
    windows = hasher.step_windows([ids[: i + 1] for i in range(len(ids))])
    for layer in hasher.layout.config.layer_ids:
        rows = hasher.window_rows(windows, layer)
        np.testing.assert_array_equal(rows, expected[f"row_ids.{layer}"][1])


@both
@pytest.mark.parametrize("chunk", [24, 5, 1])
def test_layer_outputs_are_the_librarys(name, tokenizer, chunk):
    memory, expected = version_of(opened(name, tokenizer)), reference(name)
    config = memory.config
    for layer in config.layer_ids:
        for row in range(2):
            embeddings = embeddings_of(memory, expected["input_ids"][row], layer)
            hidden = expected[f"hidden.{layer}"][row][:, None]  # [tokens, 1, D]
            state = ConvState(config.conv_history, config.conv_channels)
            parts = [
                memory.modules[layer](*pair, conv_states=[state])
                for pair in zip(hidden.split(chunk), embeddings.split(chunk), strict=True)
            ]
            found = torch.cat([part.hidden for part in parts])[:, 0]
            assert_close(found, expected[f"output.{layer}"][row])
            gates = torch.cat([part.gates for part in parts])
            assert_close(gates, expected[f"gates.{layer}"][row])


@both
@pytest.mark.parametrize("chunk", [24, 7])
def test_a_whole_model_computes_what_the_librarys_does(name, tokenizer, model, chunk):
    expected = reference(name)
    with attach(model, version_of(opened(name, tokenizer))):
        cache = DynamicCache()
        parts = [
            model(ids, cache=cache, output_hidden_states=True).hidden_states[-1]
            for ids in expected["input_ids"].split(chunk, dim=1)
        ]
    torch.testing.assert_close(
        torch.cat(parts, dim=1), expected["last_hidden_state"], atol=1e-4, rtol=1e-4
    )


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_tables_are_read_in_slices(tokenizer):
    table = opened(FOLDED, tokenizer).tables[2]
    stored = load_file(PEFT / FOLDED / WEIGHTS)["2.multi_head_embedding.embedding.weight"]
    assert (table.num_rows, table.row_dim, table.dtype) == (*stored.shape, "float32")
    torch.testing.assert_close(table.read(3, 9), stored[3:9].bfloat16(), atol=0, rtol=0)
    assert not isinstance(table, RecordReader)
    assert table.read(4, 4).shape == (0, table.row_dim)
    with pytest.raises(IndexError, match=f"within 0 to {table.num_rows}"):
        table.read(0, table.num_rows + 1)


def test_a_tokenizer_can_come_later(folder):
    imported = open_foreign(folder)
    assert (imported.compressor, imported.num_token_ids, imported.pad_class) == (None, None, None)
    assert imported.compressed_size == 761


def test_the_pad_class(tokenizer, folder):
    assert open_foreign(folder, tokenizer=tokenizer).pad_class == 2
    assert opened(UNFOLDED, None).pad_class == 903
    edit(folder, pad_id=903)  # beyond the map: it stays what it is
    assert open_foreign(folder, tokenizer=tokenizer).pad_class == 903


def test_another_tokenizer_is_refused(folder):
    with pytest.raises(MismatchError, match=r"token classes .*expected 761, found 700"):
        open_foreign(folder, tokenizer=TokenCompressor(np.arange(700)))
    with pytest.raises(ConfigError, match="fast tokenizer"):
        open_foreign(folder, tokenizer="tiny")


def edit(folder, **change):
    path = folder / "config.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "qwen_ple"}, r"engine is 'qwen_ple'; accepted: 'deepseek'"),
        ({"table_source": "engramdb:store"}, r"table_source is .*accepted: 'memory'"),
        ({"table_spec": "PLE_QWEN_V1"}, r"table_spec is 'PLE_QWEN_V1'"),
        ({"engram_version": "2.0.0"}, r"engram_version is '2.0.0'; accepted: 1.2.x"),
        ({"pad_id": None}, r"pad_id is None; accepted: a whole number >= 0"),
        ({"hidden_size": "16"}, r"hidden_size is '16'"),
        ({"ngram_sizes": []}, r"ngram_sizes is \[\]"),
        ({"embedding_dim": 18}, r"embedding_dim is 18; accepted: a multiple of 4"),
        ({"target_layers": [0, 0]}, r"layer_ids is \(0, 0\); accepted: distinct"),
        ({"engram_vocab_size_per_ngram": [65, 121]}, r"rows of layer 0 .*expected 206, found 190"),
        ({"engram_vocab_size_per_ngram": [10**12] * 2}, r"table rows .*found 190"),
        ({"embedding_dim": 32}, r"shape of .*expected \(190, 8\), found \(190, 4\)"),
        ({"hc_mult": 2}, r"unexpected are .*norm_h.2"),
        ({"hc_mult": 4}, r"it lacks .*norm_h.3"),
        ({"conv_kernel_size": 5}, r"conv.weight .*expected \(48, 1, 5\), found \(48, 1, 4\)"),
        ({"target_layers": [0]}, r"unexpected are 2\."),
        ({"target_layers": [0, 1, 2]}, r"lacks 1\.multi_head"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder, change, message):
    edit(folder, **change)
    with pytest.raises((ArtefactError, ConfigError), match=message):
        open_foreign(folder)


def test_offsets_that_are_not_the_primes_sums_are_refused(folder):
    change_tensor(folder, "0.multi_head_embedding.offsets", lambda t: t + 1)
    with pytest.raises(MismatchError, match=r"offsets of layer 0 .*expected \[0, .*found \[1, "):
        open_foreign(folder)


def test_weights_of_several_dtypes_are_refused(folder):
    change_tensor(folder, "0.gating.w_v.weight", torch.Tensor.half)
    with pytest.raises(MismatchError, match=r"dtype of .*expected F.*found F"):
        open_foreign(folder)


def change_tensor(folder, name, change):
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, name: change(tensors[name])}, folder / WEIGHTS)


def test_half_of_a_pair_with_a_lora_is_refused(folder):
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ArtefactError, match="also holds a LoRA adapter"):
        open_foreign(folder)


def test_its_constants_survive_a_manifest(tokenizer):
    layout = opened(FOLDED, tokenizer).layout
    config = EngramConfig.from_dict(json.loads(json.dumps(layout.config.to_dict())))
    assert config == layout.config
    assert HashLayout.from_dict(config, json.loads(json.dumps(layout.to_dict()))) == layout


def test_a_native_artefact_of_it_reads_the_same_rows(tokenizer, folder, tmp_path):
    edit(folder, pad_id=903)
    imported = open_foreign(folder, tokenizer=tokenizer)
    tables = {k: DenseRows(t.read(0, t.num_rows)) for k, t in imported.tables.items()}
    content = ArtefactContent(
        imported.layout, TokenizerRecord.of(imported.compressor, imported.config),
        BackboneRecord("tiny", "f" * 64, 16, 3), tables, imported.modules, "bfloat16",
    )  # fmt: skip
    write_artefact(tmp_path / "native", content)
    artefact = open_table(tmp_path / "native")
    compressor = TokenCompressor.from_tokenizer(
        tokenizer, artefact.manifest.tokenizer.num_ids, fold=artefact.config.folds_tokens
    )
    memory, direct = open_version(artefact, compressor), version_of(imported)
    ids = reference(FOLDED)["input_ids"][1]
    for layer in artefact.config.layer_ids:
        found = memory.hasher.row_ids(ids, layer)
        np.testing.assert_array_equal(found, direct.hasher.row_ids(ids, layer))
        assert torch.equal(embeddings_of(memory, ids, layer), embeddings_of(direct, ids, layer))


def test_a_map_without_folding_counts_every_id(tokenizer):
    assert TokenCompressor.from_tokenizer(tokenizer, fold=False).num_ids == 904
    unfolded = TokenCompressor.from_tokenizer(tokenizer, 1000, fold=False)
    np.testing.assert_array_equal(unfolded.class_ids, np.arange(1000))
