import json

import pytest
from model_folder import write_memory, write_model

from benchmarks.decode import main

SMALL = [
    "--dtype", "float32", "--pairs", "2", "--context", "24", "--new-tokens", "8",
    "--prefill-tokens", "64",
]  # fmt: skip


@pytest.mark.parametrize("with_memory", [True, False])
def test_both_sides_give_the_same_answers_in_float32(with_memory, tmp_path, capsys) -> None:
    model = write_model(tmp_path / "model")
    memory = str(write_memory(tmp_path / "memory", model)) if with_memory else "none"
    report = tmp_path / "report.json"
    arguments = ["--model", str(model), "--engram", memory, "--output", str(report), *SMALL]
    assert main(arguments) == 0
    results = json.loads(report.read_text())["results"]
    assert [r["workload"]["num_seqs"] for r in results] == [1, 8, 16, 1]
    assert all(r["equal_answers"] == 1.0 for r in results)
    assert all(len(rates) == 2 for r in results for rates in r["rates"].values())
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(results)
