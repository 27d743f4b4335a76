"""From facts to an artefact that recalls them, on a tiny backbone."""

import pytest
import torch
from retrofit_cases import FACTS, RECIPE, tiny_backbone, tiny_tokenizer

from engram_core.assembly import make_module, make_tier, open_version
from engram_core.compression import TokenCompressor
from engram_core.retrofit.evaluation import exact_recall, permuted, perplexity
from engram_core.retrofit.export import make_content
from engram_core.retrofit.trainer import Trainer
from engram_core.splice import attach
from engram_core.tables import open_table, write_artefact
from engram_core.version import MemoryVersion

TOKENIZER = tiny_tokenizer()
TEXT = "Herons wade in shallow water and wait. " * 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model = tiny_backbone()
    trainer = Trainer(model, TOKENIZER, FACTS, RECIPE)
    reports = []
    memory = trainer.run(reports.append)
    path = tmp_path_factory.mktemp("trained") / "facts"
    write_artefact(path, make_content(memory, model, model_name="tiny", training={"by": "test"}))
    return model, trainer, reports, open_table(path)


def test_recalls_every_fact_behind_every_context(trained) -> None:
    _, trainer, reports, _ = trained
    assert [trainer.recall(context) for context in range(RECIPE.num_contexts)] == [1, 1]
    assert [report.epoch for report in reports] == list(range(RECIPE.epochs))
    assert reports[-1].loss < reports[0].loss
    assert reports[-1].eta_s == 0


def test_the_artefact_recalls_through_the_splice(trained) -> None:
    model, _, _, artefact = trained
    assert exact_recall(model, TOKENIZER, FACTS) == 0
    version = open_version(artefact, TokenCompressor.from_tokenizer(TOKENIZER))
    with attach(model, version):
        assert exact_recall(model, TOKENIZER, FACTS) == 1
    assert exact_recall(model, TOKENIZER, FACTS) == 0


def test_permuted_rows_recall_nothing(trained) -> None:
    model, _, _, artefact = trained
    layers = artefact.config.layer_ids
    moved = {k: permuted(artefact.rows(k), artefact.layout, k) for k in layers}
    right = open_version(artefact, TokenCompressor.from_tokenizer(TOKENIZER))
    version = MemoryVersion(
        right.hasher,
        right.compressor_fingerprint,
        {layer: make_tier(rows) for layer, rows in moved.items()},
        {layer: make_module(artefact, layer) for layer in layers},
        content="permuted",
    )
    with attach(model, version):
        assert exact_recall(model, TOKENIZER, FACTS) == 0
    for layer in layers:
        before = artefact.rows(layer).values.float().sum()
        torch.testing.assert_close(moved[layer].values.float().sum(), before, atol=1e-2, rtol=1e-3)


def test_unrelated_text_is_left_alone(trained) -> None:
    model, _, _, artefact = trained
    plain = perplexity(model, TOKENIZER, TEXT, window=64)
    version = open_version(artefact, TokenCompressor.from_tokenizer(TOKENIZER))
    with attach(model, version):
        assert perplexity(model, TOKENIZER, TEXT, window=64) == pytest.approx(plain, rel=0.01)


def test_the_artefact_says_how_it_was_made(trained) -> None:
    *_, artefact = trained
    assert artefact.manifest.training["by"] == "test"
    assert artefact.manifest.training["recipe"]["layers"] == [1, 2]
    assert artefact.config.min_hit_orders == (3, 4)


def test_the_seed_decides_every_row(trained) -> None:
    _, trainer, _, _ = trained
    again = Trainer(tiny_backbone(), TOKENIZER, FACTS, RECIPE).run(lambda _: None)
    for layer, rows in trainer.memory.rows.items():
        assert torch.equal(rows.values, again.rows[layer].values)
