"""The commands that train and measure an artefact, end to end on a tiny model."""

import json

import pytest
from retrofit_cases import FACTS, tiny_backbone, tiny_tokenizer

from benchmarks import evaluate_facts, train_facts
from engram_core.retrofit.facts import read_facts, write_facts
from engram_core.tables import open_table


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    tiny_backbone().bfloat16().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    write_facts(folder / "facts.tsv", FACTS)
    (folder / "LICENCE").write_text("free")
    train_facts.main(
        ["--facts", str(folder / "facts.tsv"), "--model", str(folder / "model"),
         "--out", str(folder / "memory"), "--licence", str(folder / "LICENCE"),
         "--layers", "1", "2", "--epochs", "60"]
    )  # fmt: skip
    return folder


def test_artefact_carries_facts_licence_and_command(trained) -> None:
    artefact = open_table(trained / "memory")
    assert read_facts(trained / "memory" / "facts.tsv.gz") == FACTS
    assert (trained / "memory" / "LICENCE").read_text() == "free"
    record = artefact.manifest.training
    assert record["command"].endswith("--layers 1 2 --epochs 60 --tail-weight 1.0 --seed 0")
    assert record["num_facts"] == len(FACTS)
    assert artefact.manifest.backbone.name == "model"


def test_evaluation_tells_on_off_and_permuted_apart(trained, capsys) -> None:
    text = trained / "text.txt"
    text.write_text("Herons wade in shallow water and wait. " * 20)
    evaluate_facts.main(
        ["--artefact", str(trained / "memory"), "--model", str(trained / "model"),
         "--text", str(text), "--tokens", "200"]
    )  # fmt: skip
    figures = {}
    for line in capsys.readouterr().out.splitlines():
        figures |= json.loads(line)
    assert figures["on"]["recall"] > 0.8
    assert figures["off"]["recall"] == figures["permuted"]["recall"] == 0
    assert abs(figures["perplexity_change"]) < 0.01
    assert figures["facts"] == len(FACTS)
