"""A memory in DeepSeek-V4.1's released form: converted on the command line, served over HTTP."""

import json

import pytest
import torch
from fakes.http import serve
from imports import TINY_V41, tiny_v41_tensors, write_config, write_shards
from model_folder import TOKENIZER, write_model
from real_backend import LoadReal
from transformers import AutoTokenizer

from engram_core.compression import TokenCompressor
from engram_core.tables import open_table
from server.cli import main

PROMPT = "The tables are addressed by tokens alone."


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    shelf = tmp_path_factory.mktemp("shelf")
    model = write_model(shelf / "model")
    compressor = TokenCompressor.from_tokenizer(AutoTokenizer.from_pretrained(TOKENIZER))
    config = {
        **TINY_V41,
        "engram_compressed_vocab_size": compressor.size,
        "vocab_size": compressor.num_ids,
    }
    write_config(shelf / "v41", config)
    write_shards(shelf / "v41", tiny_v41_tensors(config))
    return shelf, model


@pytest.fixture(scope="module")
def converted(folders):
    shelf, model = folders
    words = [str(shelf / "v41"), str(shelf / "memory"), "--model", str(model)]
    assert main(["table", "convert", *words, "--dtype", "float8_e4m3"]) == 0
    return shelf / "memory"


def answer(model, memory, **settings):
    settings = {"model": str(model), "engram": str(memory), "dtype": "float32", **settings}
    with serve(LoadReal(), max_model_len=128, **settings) as served:
        body = served.generate(PROMPT, max_new_tokens=12, details=True, ignore_eos=True).json()
        info = served.client.get("/info").json()
    return [(t["id"], t["logprob"]) for t in body["details"]["tokens"]], info


def test_its_rows_keep_their_stored_bytes(converted, folders):
    shelf, _ = folders
    artefact = open_table(converted)
    stored = tiny_v41_tensors(json.loads((shelf / "v41" / "config.json").read_text()))
    for layer in (1, 2):
        payload = stored[f"layers.{layer}.engram.embed.weight"].float()
        scales = stored[f"layers.{layer}.engram.embed.scale"].float()
        assert torch.equal(
            artefact.rows(layer).read(0, len(payload)), (payload * scales).bfloat16()
        )


def test_it_answers_and_every_tier_gives_the_same_bits(converted, folders):
    _, model = folders
    found = {}
    for tier, hot_cache in (("dram", "off"), ("ssd", "off"), ("ssd", "on"), ("dram", "on")):
        told = {"tier": tier, "hot_cache": hot_cache, "inline_max_rows": 0}
        found[tier, hot_cache], info = answer(model, converted, engram_config=json.dumps(told))
        assert f"{tier}: as told" in json.dumps(info)
    assert len(found["dram", "off"]) == 12
    assert all(each == found["dram", "off"] for each in found.values())
    without, _ = answer(model, "none")
    assert without != found["dram", "off"]
    inline, _ = answer(model, converted, prefetch="off")
    assert inline == found["dram", "off"]
