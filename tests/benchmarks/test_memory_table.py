import gzip
import json

import pytest
from model_folder import write_memory, write_model

from benchmarks.memory_table import main
from benchmarks.server_process import serve


@pytest.mark.slow
def test_table_of_a_running_server(tmp_path, capsys) -> None:
    """A random model recalls what it says by itself, and a random memory makes it say other things.

    The facts are the answers without the memory, so recall is 100 % off and lower on.
    """
    model = str(write_model(tmp_path / "model"))
    memory = str(write_memory(tmp_path / "memory", tmp_path / "model"))
    facts, report = tmp_path / "facts.tsv.gz", tmp_path / "report.json"
    arguments = ["--artefact", memory, "--model", model, "--facts", str(facts)]
    arguments += ["--passages", "3", "--passage-chars", "60", "--output", str(report)]
    with serve([model, "--engram", memory, "--max-model-len", "128"]) as served:
        prompts = [f"question {n}" for n in range(6)]
        answers = [served.answer(p, max_new_tokens=4, memory=False) for p in prompts]
        lines = [f"{p}\t{a}\n" for p, a in zip(prompts, answers, strict=True) if _is_plain(a)]
        facts.write_bytes(gzip.compress("".join(lines).encode()))
        assert main([served.url, *arguments]) == 0
    figures = json.loads(report.read_text())["figures"]
    assert figures["off"]["recall"] == 1.0
    assert figures["on"]["recall"] < 1.0
    assert figures["on"]["perplexity"] != figures["off"]["perplexity"]
    assert set(figures["permuted"]) == {"recall"}
    assert "rows permuted" in capsys.readouterr().out


def _is_plain(answer: str) -> bool:
    """Whether the answer can stand in a facts file."""
    return bool(answer.strip()) and answer.isprintable()
