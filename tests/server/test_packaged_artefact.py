"""The artefact that is installed with the server is whole, small and licensed."""

import pytest

from engram_core.assembly import make_module, make_tier
from engram_core.retrofit.facts import read_facts
from engram_core.tables import open_table
from server.artefact_choice import choose_artefact, packaged_folder

MAX_BYTES = 15_000_000
SHIPPED = sorted(path.parent for path in packaged_folder().glob("*/manifest.json"))


@pytest.fixture(scope="module")
def artefact():
    return open_table(SHIPPED[0])


def test_one_artefact_is_installed() -> None:
    assert [folder.name for folder in SHIPPED] == ["smollm2-135m-wordnet"]


def test_it_is_whole_and_fits_its_layout(artefact) -> None:
    for layer in artefact.config.layer_ids:
        assert make_tier(artefact.rows(layer)).num_rows == artefact.layout.rows[layer]
        assert make_module(artefact, layer).layer == layer


def test_it_is_found_for_its_backbone(artefact) -> None:
    assert choose_artefact("auto", None, artefact.manifest.backbone.fingerprint) == SHIPPED[0]


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED[0].iterdir()) <= MAX_BYTES


def test_it_carries_its_facts_their_licence_and_the_command(artefact) -> None:
    assert len(read_facts(SHIPPED[0] / "facts.tsv.gz")) > 2900
    assert "WordNet 3.0 Copyright 2006" in (SHIPPED[0] / "LICENSE-WordNet.txt").read_text()
    assert {"facts.tsv.gz", "LICENSE-WordNet.txt"} <= set(artefact.manifest.files)
    assert artefact.manifest.training["command"].startswith("python -m benchmarks.train_facts")


def test_it_declares_the_hit_rule(artefact) -> None:
    assert artefact.config.min_hit_orders == (3, 4)
