"""State dicts of the demo, as safetensors: every module vector goes through the importer."""

import shutil

import numpy as np
import pytest
import torch
from golden_cases import DEMO, Case, cases
from imports import demo_modules, embeddings_of, version_of, write_config, write_demo
from safetensors.torch import load_file, save_file

from engram_core.compression import TokenCompressor
from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.tables import open_foreign

MODULES = cases(DEMO, "m_")
SMALL = Case(DEMO / "m_tinyb_n3_h2_hc4")


@pytest.fixture
def folder(tmp_path):
    write_demo(tmp_path / "demo", SMALL)
    return tmp_path / "demo"


def class_map(case):
    return TokenCompressor(case.class_ids)


@pytest.mark.parametrize("case", MODULES, ids=lambda case: case.name)
@pytest.mark.parametrize("one_file", [True, False])
def test_reference_vectors(case, one_file, tmp_path):
    write_demo(tmp_path / "demo", case, one_file=one_file)
    imported = open_foreign(tmp_path / "demo", tokenizer=class_map(case))
    assert (imported.source_format, imported.config) == ("demo", case.config)
    memory, tensors = version_of(imported), case.tensors
    for layer in case.config.layer_ids:
        offsets = torch.tensor(memory.layout.offsets[layer])
        rows = memory.hasher.row_ids(tensors["input_ids"][0], layer)
        np.testing.assert_array_equal(rows, tensors[f"hash_ids.{layer}"][0] + offsets)
        weights = demo_modules(case)[layer]
        table = weights["multi_head_embedding.embedding.weight"]
        stored = imported.tables[layer].read(0, len(table))
        torch.testing.assert_close(stored, table.bfloat16(), atol=0, rtol=0)
        exact = table[rows].flatten(-2)  # the vectors were computed with float32 rows
        delta, gates = memory.modules[layer].contribution(tensors["hidden_states"][0], exact)
        torch.testing.assert_close(gates, tensors[f"gates.{layer}"][0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(delta, tensors[f"output.{layer}"][0], atol=1e-5, rtol=1e-5)
        rounded = embeddings_of(memory, tensors["input_ids"][0], layer)
        torch.testing.assert_close(rounded, exact.bfloat16().float(), atol=0, rtol=0)


def test_one_file_is_enough_of_a_path(folder):
    imported = open_foreign(folder / "memory.safetensors", tokenizer=class_map(SMALL))
    assert imported.config == SMALL.config
    assert imported.num_token_ids == len(SMALL.class_ids)
    assert imported.pad_class == SMALL.meta["pad_id_compressed"]


def test_it_needs_a_tokenizer(folder):
    with pytest.raises(ConfigError, match="pass the tokenizer"):
        open_foreign(folder)


def refused(folder, message, error=ArtefactError):
    with pytest.raises(error, match=message):
        open_foreign(folder, tokenizer=class_map(SMALL))


def rewrite(folder, change):
    path = folder / "memory.safetensors"
    save_file(change(load_file(path)), path)


def test_the_configuration_decides_and_is_needed(folder):
    demo = {**SMALL.meta["engram"], **(SMALL.meta["backbone"] or {})}
    write_config(folder, {**demo, "engram_vocab_size": [131, 151]})
    refused(folder, r"offsets and rows .*expected .*layer .*found \(0, ", MismatchError)
    write_config(folder, {**demo, "conv_dilation": 2})
    refused(folder, "unknown configuration key", ConfigError)
    write_config(folder, {**demo, "max_ngram_size": None})
    refused(folder, "config.json is not the demo's configuration")
    write_config(folder, {**demo, "layer_ids": [*demo["layer_ids"], 40]})
    refused(folder, r"layers \[40\] have no module")
    (folder / "config.json").unlink()
    refused(folder, "config.json is missing")


def test_a_module_twice_is_refused(folder):
    shutil.copy(folder / "memory.safetensors", folder / "again.safetensors")
    refused(folder, r"memory.safetensors .*layer \d+ is there twice")


def test_tensors_that_do_not_fit_are_refused(folder):
    original = load_file(folder / "memory.safetensors")
    [prefix, *_] = sorted({name.rsplit("value_proj", 1)[0] for name in original if "value" in name})
    bias = f"{prefix}value_proj.bias"
    rewrite(folder, lambda t: {k: v for k, v in t.items() if k != bias})
    refused(folder, rf"it lacks {bias}")
    rewrite(folder, lambda _: {**original, f"{prefix}extra": torch.zeros(1)})
    refused(folder, rf"unexpected are {prefix}extra")
    rewrite(folder, lambda _: {**original, "lm_head.weight": torch.zeros(1)})
    refused(folder, "unknown tensor 'lm_head.weight'")
    rewrite(folder, lambda _: {**original, bias: original[bias].to(torch.int64)})
    refused(folder, rf"dtype of {bias} .*expected F32 or BF16 or F16, found I64", MismatchError)
    rewrite(folder, lambda _: {**original, bias: original[bias][1:].clone()})
    refused(folder, rf"shape of {bias} .*expected \(\d+,\), found", MismatchError)
