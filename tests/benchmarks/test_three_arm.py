"""The three-arm experiment: arms compute the same, and the whole of it runs on small tables."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from artefacts import tiny_compressor

from benchmarks import page_cache
from benchmarks.three_arm import peer
from benchmarks.three_arm.__main__ import main
from benchmarks.three_arm.article import STRETCH, TOKENS, Regime
from benchmarks.three_arm.backings import MappedTable, packed_tables
from benchmarks.three_arm.demo_engram import DemoEngram
from benchmarks.three_arm.experiment import NO_PEER, check_answers
from benchmarks.three_arm.layer_hash import LayerHash
from benchmarks.three_arm.measure import Series
from benchmarks.three_arm.shape import demo_config, write_memory
from engram_core.config import EngramConfig
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule

SMALL = EngramConfig.from_demo({
    "engram_vocab_size": [101, 101], "n_embed_per_ngram": 32, "n_head_per_ngram": 4,
    "hidden_size": 16, "hc_mult": 2,
})  # fmt: skip


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    config = demo_config(3e5)
    return write_memory(tmp_path_factory.mktemp("memory") / "demo", tiny_compressor(), config)


def test_the_demos_hash_is_the_servers():
    compressor = tiny_compressor()
    hasher = NgramHasher(HashLayout.build(SMALL, compressor.size), compressor.class_ids)
    ids = np.random.default_rng(0).integers(0, 128, 50)
    for layer in SMALL.layer_ids:
        assert np.array_equal(LayerHash(hasher)(ids, layer), hasher.row_ids(ids, layer))


def test_the_demos_module_computes_what_the_servers_does():
    module = EngramModule(SMALL, 1).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.normal_(0.5, 0.3, generator=generator)
    hidden = torch.randn(30, 2, 16, generator=generator)
    rows = torch.randn(30, SMALL.memory_dim, generator=generator)
    torch.testing.assert_close(DemoEngram(module)(hidden, rows), module(hidden, rows).hidden)


def test_arms_that_disagree_are_not_compared():
    class Answers:
        name, dtype = "1", torch.float32

        def __init__(self, value):
            self.value = value

        def answer(self, token_ids):
            return torch.full((4,), self.value)

    check_answers([Answers(1.0), Answers(1.0001)], np.arange(3))
    with pytest.raises(RuntimeError, match=r"arm 1 differs from arm 0 by 0\.1"):
        check_answers([Answers(1.0), Answers(1.1)], np.arange(3))


def test_a_mapped_table_lets_go_of_its_pages(artefact):
    table = packed_tables(artefact)[1]
    mapped = MappedTable(table)
    page_cache.drop([table.path])
    if page_cache.resident_share(table.path) == 1:
        pytest.skip("this file system keeps its files in memory")
    assert mapped.words[:].any()  # touches every page
    page_cache.drop([table.path])
    assert page_cache.resident_share(table.path) > 0.9
    mapped.forget()
    page_cache.drop([table.path])
    assert page_cache.resident_share(table.path) == 0
    expected = table.read(5, 9).view(torch.int16).numpy()
    assert np.array_equal(mapped.words[5:9], expected)


def test_the_peer_reads_the_same_rows(artefact, tmp_path):
    tables = packed_tables(artefact)
    found = peer.open_peer(tables, tmp_path)
    peer.check(found, tables)
    other = replace(found, stores={1: found.stores[15], 15: found.stores[1]})
    with pytest.raises(RuntimeError, match="other rows for layer 1"):
        peer.check(other, tables)


def test_a_wait_of_nothing_still_makes_a_ratio():
    first, second = Series(), Series()
    first.total_s, first.exposed_s, first.lookup_s = [2.0] * 3, [1.0] * 3, [1.0] * 3
    second.total_s, second.exposed_s, second.lookup_s = [1.0] * 3, [0.0] * 3, [1.0] * 3
    assert second.faster(first).ratio == 2
    assert second.less_exposed(first).ratio == pytest.approx(1e6)
    assert (first.hidden, second.hidden) == (0.0, 1.0)


@pytest.fixture
def small_run(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{n} is not word{n * 7}" for n in range(2000)))
    flags = ["--text", str(text), "--tokens", "64", "--rounds", "2", "--warm-up", "2"]
    sizes = ["--table-bytes", "3e5", "--ssd-bytes", "6e5", "--json", str(tmp_path / "out.json")]
    return [*flags, *sizes, "--folder", str(tmp_path / "tables")], tmp_path / "out.json"


def test_it_runs_on_every_backing(small_run, capsys, monkeypatch):
    flags, report = small_run
    assert main([*flags, "--device", "cpu", "--dtype", "bfloat16"]) == 0
    out = capsys.readouterr().out
    results = json.loads(report.read_text())["results"]
    assert [each["backing"] for each in results] == ["dram", "ssd", "remote"]
    for each in results:
        series = each["series"]
        assert len(series) == (5 if each["backing"] == "ssd" else 4)
        assert {len(arm["total_s"]) for arm in series.values()} == {2}
        assert {arm["rows"] for arm in series.values()} == {2 * 2 * 64 * 32}
        assert series["0 in the layer"]["hits"] == 0 < series["1 hot cache"]["hits"]
        assert series["1 hot cache"]["hits"] == series["2 + prefetch"]["hits"]
    assert results[1]["resident"][0] == 0.0
    assert "auto chose ssd: as told" in out
    assert "(mincore)" in out
    assert report.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda name: None)
    assert main([*flags, "--device", "cpu", "--dtype", "bfloat16", "--backing", "ssd"]) == 0
    assert NO_PEER in capsys.readouterr().out


def test_the_articles_regime_is_calibrated_on_its_arm_0(small_run, capsys):
    flags, report = small_run
    assert main([*flags, "--device", "simulated"]) == 0
    out = capsys.readouterr().out
    assert "20.94" in out
    assert "19.22" in out
    assert set(json.loads(report.read_text())["results"]) == {"0", "1", "2"}

    class Version:
        layer_ids, config = (1, 15), EngramConfig.from_demo({})

    regime = Regime.of(Version)
    rows = TOKENS * 16 * 2
    assert regime.row_s * rows / STRETCH == pytest.approx(11.63e-3)
    assert (regime.row_s * rows + 2 * regime.layer_s) / STRETCH == pytest.approx(26.72e-3)
