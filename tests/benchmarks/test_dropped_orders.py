"""The figures of every choice of orders, for memories with and without a hit rule."""

import json

import pytest
from artefacts import tiny_content
from retrofit_cases import FACTS, tiny_backbone, tiny_tokenizer

from benchmarks import dropped_orders, train_facts
from benchmarks.dropped_orders import Measured, choices, render
from engram_core.retrofit.facts import write_facts
from engram_core.tables import open_table

SHAPE = {"orders": (3, 4, 5), "rows_per_head": (211,) * 3}


def test_choices_keep_what_the_hit_rule_needs() -> None:
    free = tiny_content(**SHAPE).layout.config
    assert choices(free) == [(3, 4, 5), (3, 4), (3, 5), (4, 5), (3,), (4,), (5,)]
    ruled = tiny_content(**SHAPE, min_hit_orders=(3, 4)).layout.config
    assert choices(ruled) == [(3, 4, 5), (3, 4)]
    found = [Measured((3, 4), 8, 0.5, 14.25), Measured((), 0, 0.0, 15.0)]
    assert "| 3, 4 | 8 | 50.0% | 14.250 |\n| memory off | 0 | 0.0% | 15.000 |" in render(
        found, ruled
    )
    assert render(found, ruled).endswith("accepts: its hit rule needs orders 3, 4.")
    assert render(found, free).endswith("accepts: it has no hit rule.")


@pytest.mark.slow
def test_every_choice_of_a_memory_without_a_rule_is_measured(tmp_path, capsys) -> None:
    tiny_backbone().bfloat16().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    write_facts(tmp_path / "facts.tsv", FACTS)
    (tmp_path / "text.txt").write_text("Herons wade in shallow water and wait. " * 20)
    memory, report = tmp_path / "memory", tmp_path / "report.json"
    common = ["--model", str(tmp_path / "model"), "--facts", str(tmp_path / "facts.tsv")]
    train_facts.main(
        [*common, "--out", str(memory), "--layers", "1", "2", "--epochs", "40", "--hit-orders"]
    )
    dropped_orders.main(
        [*common, "--engram", str(memory), "--text", str(tmp_path / "text.txt"),
         "--tokens", "200", "--output", str(report)]
    )  # fmt: skip
    found = {tuple(each["orders"]): each for each in json.loads(report.read_text())["figures"]}
    assert len(found) == 8
    for orders, each in found.items():
        assert each["rows_per_token"] == 2 * 2 * len(orders)  # layers and heads
    assert found[()]["recall"] == 0
    assert found[3, 4, 5]["recall"] > 0.8
    assert found[5,]["recall"] < found[3, 4, 5]["recall"]
    assert "| memory off | 0 | 0.0% |" in capsys.readouterr().out
    training = open_table(memory).manifest.training
    assert training["command"].endswith("--seed 0 --hit-orders")
