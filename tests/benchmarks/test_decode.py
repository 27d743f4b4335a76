import json

import pytest
from model_folder import write_memory, write_model

from benchmarks.catalogue import Surroundings, local_contenders
from benchmarks.decode import main
from benchmarks.rows import QUICK, ROWS
from server.backend import load_backend
from server.engine.tuning import Tuning

SMALL = [
    "--dtype", "float32", "--rounds", "2", "--context", "24", "--new-tokens", "32",
    "--prefill-tokens", "64",
]  # fmt: skip


@pytest.fixture
def measured(tmp_path):
    """Runs the command on a tiny model with a memory; returns its report."""
    model = write_model(tmp_path / "model")
    memory = write_memory(tmp_path / "memory", model)

    def run(*arguments: str) -> dict:
        output = ["--output", str(tmp_path / "report.json"), "--plot", str(tmp_path / "plot.png")]
        chosen = ["--model", str(model), "--engram", str(memory)]
        assert main([*chosen, *output, *SMALL, *arguments]) == 0
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
        return json.loads((tmp_path / "report.json").read_text())

    return run


def test_everybody_with_the_same_memory_gives_the_same_answers_in_float32(measured, capsys) -> None:
    report = measured(
        "--rows", "decode-1", "decode-8", "prefill", "--contenders", "http", "generate"
    )
    assert [r["row"] for r in report["results"]] == ["decode-1", "decode-8", "prefill"]
    for result in report["results"]:
        names = [entry["name"] for entry in result["entries"]]
        assert names == ["engine", "engram-server HTTP", "transformers generate()"]
        assert all(entry["same_answers"] == 1.0 for entry in result["entries"])
        assert all(entry["has_memory"] for entry in result["entries"])
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3 * 3


def test_rows_without_the_memory_and_a_contender_that_is_missing(
    measured, tmp_path, capsys
) -> None:
    report = measured(
        "--rows", "memory-decode-1", "decode-1", "--contenders", "engine-off", "continuous",
        "llama", "--llama-cpp", str(tmp_path),
    )  # fmt: skip
    cost, speed = report["results"]
    assert [entry["has_memory"] for entry in cost["entries"]] == [True, False]
    assert [entry["name"] for entry in speed["entries"]] == [
        "engine", "transformers continuous batching",
    ]  # fmt: skip
    (sentence,) = report["left_out"]
    assert sentence.startswith("llama.cpp: no libraries found in ")
    assert f"left out: {sentence}" in capsys.readouterr().out


def test_every_way_to_compute_gives_the_same_answers_in_float32(measured) -> None:
    report = measured("--rows", "torch-decode-1")
    names = [[entry["name"] for entry in result["entries"]] for result in report["results"]]
    assert names == [["engine", "engine, torch"]]
    for result in report["results"]:
        assert all(entry["same_answers"] == 1.0 for entry in result["entries"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("engine", {}),
        ("engine-torch", {"kernels": "torch"}),
        *((f"engine-{each}", {"quantize": each}) for each in ("int8", "int4", "auto")),
    ],
)
def test_a_contender_is_the_engine_that_its_name_says(name, told, tmp_path, monkeypatch) -> None:
    folder = str(write_model(tmp_path / "model"))
    backends = []

    def noting(*arguments):
        backends.append(load_backend(*arguments))
        return backends[-1]

    monkeypatch.setattr("benchmarks.contenders.engine.load_backend", noting)
    around = Surroundings(folder, folder, "none", "float32", "", 1, 64, 1)
    with local_contenders(around)[name]() as contender:
        assert len(contender.run([[5, 6, 7]], 3).token_ids[0]) == 3
    (backend,) = backends
    assert backend.engine.tuning == Tuning(**told)
    assert contender.bits == told.get("quantize", "fp32")


def test_rows_begin_with_what_is_compared() -> None:
    assert set(QUICK) <= set(ROWS)
    assert all(row.contenders[0].startswith("engine") for row in ROWS.values())
    assert all(row.name == name for name, row in ROWS.items())
