"""DeepSeek-V4.1 tables served where they lie, over HTTP: the converted artefact's answers."""

import json
import os
import shutil

import pytest
import torch
from fakes.http import serve
from in_place import write_checkpoint
from model_folder import write_model
from real_backend import LoadReal
from row_processes import READY_S, row_server
from transformers import AutoModelForCausalLM

from engram_core.errors import ConfigError, MismatchError, UnsupportedModelError
from engram_core.memory_config import MemoryConfig
from server import loader
from server.cli import main
from server.config import Settings
from server.loader import load

PROMPT = "The tables are addressed by tokens alone."
KEY = "an-admin-key-of-a-test"
ADMIN = {"authorization": f"Bearer {KEY}"}
LENGTH = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, model):
    """A checkpoint in shards, another one in one file, and what is made of the first."""
    folder = tmp_path_factory.mktemp("shelf")
    write_checkpoint(folder / "v41")
    write_checkpoint(folder / "other", seed=1, sharded=False)
    words = [str(folder / "v41"), str(folder / "converted"), "--model", str(model)]
    assert main(["table", "convert", *words, "--dtype", "float8_e4m3"]) == 0
    return folder


def live(model, memory, told=None, **settings):
    told = json.dumps({"inline_max_rows": 0, **(told or {})})
    settings = {"dtype": "float32", "engram_config": told, **settings}
    return serve(LoadReal(), max_model_len=128, model=str(model), engram=str(memory), **settings)


def answer(served):
    found = served.generate(PROMPT, max_new_tokens=LENGTH, details=True, ignore_eos=True)
    assert found.status_code == 200, found.text
    body = found.json()
    return body["generated_text"], [(t["id"], t["logprob"]) for t in body["details"]["tokens"]]


@pytest.fixture(scope="module")
def expected(model, shelf):
    with live(model, shelf / "converted") as served:
        return answer(served)


@pytest.mark.parametrize("tier", ["dram", "ssd"])
@pytest.mark.parametrize("hot_cache", ["off", "on"])
def test_it_answers_as_the_converted_artefact_does(model, shelf, expected, tier, hot_cache):
    with live(model, shelf / "v41", {"tier": tier, "hot_cache": hot_cache}) as served:
        assert answer(served) == expected
        info = served.client.get("/info").json()["engram"]
        rows_read = served.client.get("/metrics").text
    outer = "hot" if hot_cache == "on" else {"dram": "host", "ssd": "ssd"}[tier]
    assert {each["tier"] for each in info["tiers"].values()} == {outer}
    assert (info["artefact"], info["storage"], info["backbone"]) == ("v41", "in place", "model")
    assert f"{tier}: as told" in info["why_tiers"]
    assert "read in place: shapes, dtypes" in info["why_tiers"]
    assert "no checksums" in info["why_tiers"]
    assert 'engram_rows_read_total{tier="' in rows_read


def test_another_memory_answers_otherwise(model, shelf, expected):
    with live(model, shelf / "other", {"tier": "ssd"}) as served:
        assert answer(served) != expected
    with live(model, "none") as served:
        assert answer(served) != expected


def test_a_file_cut_short_under_load_is_an_error_and_never_a_wrong_answer(
    model, shelf, expected, tmp_path
):
    folder = shutil.copytree(shelf / "v41", tmp_path / "v41")
    with live(model, folder, {"tier": "ssd", "hot_cache": "off"}, prefix_cache="off") as served:
        assert answer(served) == expected
        for path in folder.glob("*.safetensors"):
            os.truncate(path, 100)
        failed = served.generate(PROMPT, max_new_tokens=2)
        assert failed.status_code == 424
        assert "rows could not be read" in failed.json()["error"]
        assert served.client.get("/ready").status_code == 200


def test_a_running_server_takes_it_by_name(model, shelf, expected):
    settings = {"engram_dir": str(shelf), "admin_key": KEY}
    with live(model, shelf / "other", {"tier": "ssd"}, **settings) as served:
        other = answer(served)
        for name, is_first in (("v41", True), ("converted", True), ("other", False), ("v41", True)):
            body = {"name": name}
            done = served.client.post("/admin/tables", json=body, headers=ADMIN)
            assert done.status_code == 200, done.text
            assert done.json()["artefact"] == name
            assert answer(served) == (expected if is_first else other)


def test_what_a_running_server_cannot_take_leaves_the_old_memory(model, shelf, expected, tmp_path):
    folder = shutil.copytree(shelf, tmp_path / "shelf")
    write_checkpoint(folder / "streams", hc_mult=4)
    write_checkpoint(folder / "wide", hidden_size=64)
    write_checkpoint(folder / "classes", engram_compressed_vocab_size=7)
    path = folder / "other" / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    settings = {"engram_dir": str(folder), "admin_key": KEY}
    with live(model, folder / "v41", **settings) as served:
        for name, text in (
            ("streams", "hidden streams"), ("wide", "hidden size"), ("classes", "token classes"),
            ("other", "file size in bytes"), ("nothing", "accepted: classes, converted, other"),
        ):  # fmt: skip
            refused = served.client.post("/admin/tables", json={"name": name}, headers=ADMIN)
            assert (refused.status_code, text in refused.json()["error"]) == (422, True)
            assert str(tmp_path) not in refused.text
            assert answer(served) == expected


def loaded(model, memory, **told):
    return load(Settings(model=str(model), engram=str(memory)), memory=MemoryConfig(**told))


def test_several_streams_are_refused_before_tables_are_read(model, tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "open_version", None)
    write_checkpoint(tmp_path / "v41", hc_mult=4)
    with pytest.raises(MismatchError, match=r"hidden streams \(.*expected 4, found 1"):
        loaded(model, tmp_path / "v41")


def test_a_backbone_with_hyper_connections_is_refused(model, shelf, monkeypatch):
    real = AutoModelForCausalLM.from_pretrained

    def as_v4(*arguments, **options):
        found = real(*arguments, **options)
        found.config.model_type = "deepseek_v4"
        return found

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", as_v4)
    with pytest.raises(UnsupportedModelError, match="accepted: a decoder with one hidden stream"):
        loaded(model, shelf / "v41")


def test_row_servers_have_native_artefacts(model, shelf):
    told = {"tier": "remote", "row_servers": ("127.0.0.1:1",)}
    with pytest.raises(ConfigError, match="tier is 'remote' for v41, which is read in place; acc"):
        loaded(model, shelf / "v41", **told)
    with row_server("--engram", str(shelf / "v41"), "--port", "0") as (child, line):
        assert (line, child.wait(READY_S)) == ("", 1)
        assert "v41 is read in place" in child.stderr.read()


def test_the_weights_are_those_of_the_converted_artefact(model, shelf):
    found, converted = loaded(model, shelf / "v41"), loaded(model, shelf / "converted")
    for layer, module in found.version.modules.items():
        for name, weight in converted.version.modules[layer].state_dict().items():
            assert torch.equal(module.state_dict()[name], weight)
    assert found.version.id != converted.version.id
    for each in (found, converted):
        each.version.release()
