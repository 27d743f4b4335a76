"""The check for hosts with an accelerator, on a tiny shape and without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_check import compare_tokens, main
from server.engine.engine import Engine
from server.engine.types import TokenLogprob

ROOT = Path(__file__).parents[2]
# what a host for the check need not have, beside torch, transformers, numpy and safetensors
BLOCKED = (
    "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "prometheus_client", "pydantic",
    "pydantic_settings", "orjson", "numba", "gguf",
)  # fmt: skip
IMPORT_EVERYTHING = f"""
import importlib, pkgutil, sys
for name in {BLOCKED}:
    sys.modules[name] = None
import engram_core, server.engine, benchmarks.gpu_check
for package in (engram_core, server.engine):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith("server.engine.native."):  # compiled kernels are for CPUs
            importlib.import_module(module.name)
"""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the shape is tiny
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_every_part_runs_and_the_tokens_are_right(device, tmp_path, capsys):
    report = tmp_path / "report.json"
    assert main(["--shape", "tiny", "--device", device, "--output", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "ok    eager: 24 of 24 float32 tokens" in printed
    found = json.loads(report.read_text())
    cached = ["host, hot cache"] if device != "cpu" else []
    assert [each["decode"] for each in found["equality"]] == (
        ["eager", "graphs", "eager, hot cache", "graphs, hot cache"] if cached else ["eager"]
    )
    assert not any(each["wrong"] + each["near_ties"] for each in found["equality"])
    assert ("hot cache: none" in printed) == (not cached)
    assert ("hot cache of layer" in printed) == bool(found["hot_cache"]) == bool(cached)
    assert all(0 < each["hit_rate"] < 1 for each in found["hot_cache"])
    assert {each["phase"] for each in found["overlap"]} == {"prefill", "decode"}
    assert all(0 <= each["hidden_fraction"] <= 1 for each in found["overlap"])
    rows = [(each["tables"], each["sequences"]) for each in found["rates"]]
    assert rows == [(place, n) for place in ("none", "host", *cached, "device") for n in (1, 3)]
    for each in found["rates"]:
        assert each["eager"] > 0
        assert (each["graphs"] is None) == (device == "cpu")


def test_every_engine_gets_a_new_model_with_the_same_weights(monkeypatch):
    models = []

    class Noting(Engine):
        def __init__(self, model, *rest, **settings):
            models.append(model)
            super().__init__(model, *rest, **settings)

    monkeypatch.setattr(gpu_check, "Engine", Noting)
    assert main(["--shape", "tiny", "--device", "simulated", "--budget", "0"]) == 0
    assert len({id(model) for model in models}) == len(models) == 1 + 2 * 2 + 1
    heads = [model.get_input_embeddings().weight for model in models if model.dtype.itemsize == 4]
    assert all(torch.equal(head, heads[0]) for head in heads)


def test_rows_that_do_not_fit_the_budget_are_named(capsys):
    assert main(["--shape", "tiny", "--device", "cpu", "--budget", "0"]) == 0
    assert "no time left for tables: device, sequences: 3" in capsys.readouterr().out


def test_a_device_that_is_not_there_is_one_sentence(capsys):
    assert main(["--device", "cuda:4000"]) == 1
    assert capsys.readouterr().out.startswith('FAIL  device "cuda')


def test_first_differences_are_judged_and_what_follows_is_not_counted():
    def tokens(*pairs):
        return [TokenLogprob(token_id, "", logprob) for token_id, logprob in pairs]

    expected = [tokens((1, -1.0), (2, -1.0), (3, -1.0))] * 3
    found = [
        expected[0],
        tokens((1, -1.0), (9, -1.00001), (8, -3.0)),
        tokens((7, -2.0), (2, -1.0), (3, -1.0)),
    ]
    counts = compare_tokens(expected, found)
    assert counts == {"tokens": 9, "equal": 4, "near_ties": 1, "wrong": 1}


def test_core_and_engine_need_no_web_framework():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
