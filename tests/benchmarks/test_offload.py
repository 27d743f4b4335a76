import json

import pytest
from model_folder import write_model

from benchmarks.offload import SIZE, SSD, main, sides
from benchmarks.page_cache import drop, resident_share

TINY = [
    "--bytes-per-layer", "2e6", "--layers", "1", "2", "--rounds", "2", "--warm-up", "2",
    "--context", "24", "--new-tokens", "16", "--dtype", "float32", "--threads", "1",
]  # fmt: skip
COLUMNS, LAYERS = 16, 2


@pytest.fixture
def measured(tmp_path):
    """Runs the command on a tiny model; returns its report."""
    probe = tmp_path / "probe"
    probe.write_bytes(b"x")
    drop([probe])
    if resident_share(probe):
        pytest.skip("this folder's files live in memory")
    model = write_model(tmp_path / "model")

    def run(*arguments: str) -> dict:
        output = tmp_path / "report.json"
        chosen = ["--model", str(model), "--folder", str(tmp_path / "shelf")]
        assert main([*TINY, *chosen, "--output", str(output), *arguments]) == 0
        return json.loads(output.read_text())

    run.shelf = tmp_path / "shelf"
    return run


def rows(run: dict, phase: str, tier: str | None = None) -> float:
    by_tier = run["lookups"][phase]["rows_by_tier"]
    return sum(by_tier.values()) if tier is None else by_tier.get(tier, 0)


def hot_share(runs: list[dict]) -> float:
    return sum(rows(run, "decode", "hot") for run in runs) / sum(rows(r, "decode") for r in runs)


def test_the_counters_prove_where_rows_came_from(measured, capsys) -> None:
    report = measured("--question", "ssd", "--sequences", "1", "2")
    assert [r["workload"]["name"] for r in report["results"]] == ["decode-2"] * 2 + ["decode-1"] * 2
    assert [r["prompts"] for r in report["results"]] == ["new", "repeated"] * 2
    for result in report["results"]:
        num_seqs, expected = result["workload"]["num_seqs"], COLUMNS * LAYERS
        for run in result["runs"]["rows on ssd"]:
            assert rows(run, "decode") == num_seqs * 15 * expected
            assert rows(run, "decode", "hot") + rows(run, "decode", "ssd") == rows(run, "decode")
        for run in result["runs"]["rows in dram"]:
            assert rows(run, "decode", "host") == num_seqs * 15 * expected
        if result["prompts"] == "new":
            all_runs = [run for runs in result["runs"].values() for run in runs]
            assert all(rows(run, "prefill") == num_seqs * 24 * expected for run in all_runs)
            assert any(rows(run, "prefill", "ssd") for run in result["runs"]["rows on ssd"])
        # the same rows, bit for bit
        assert [entry["same_answers"] for entry in result["entries"]] == [1.0, 1.0]
    # a conversation that comes back finds more of its rows in the hot cache
    new, again = (hot_share(result["runs"]["rows on ssd"]) for result in report["results"][:2])
    assert again > new
    assert list(measured.shelf.iterdir()) == []  # nothing said that the artefact shall be kept
    out = capsys.readouterr().out
    assert "rows on ssd: ssd: as told" in out
    assert "rows in dram: dram: as told" in out
    assert "hot cache hits while it warmed up, decode: " in out
    assert "largest share of a table's file in the page cache: 0.00% before a run" in out
    assert "new prompts: no text was in two prompts" in out


@pytest.mark.slow
def test_sizes_are_compared_in_memory_and_artefacts_are_reused(measured, capsys) -> None:
    report = measured("--question", "size", "--sequences", "2", "--keep")
    assert [r["workload"]["name"] for r in report["results"]] == ["prefill-2", "decode-2"]
    tables = [report["contenders"][name]["tiers"]["1"] for name in ("large table", "small table")]
    assert [each["tier"] for each in tables] == ["host", "host"]
    assert tables[0]["bytes"] > 5 * tables[1]["bytes"]  # primes make a tiny table larger
    assert not report["warm_up"]
    written = sorted(measured.shelf.iterdir())
    capsys.readouterr()
    measured("--question", "size", "--sequences", "1")
    assert "written" not in capsys.readouterr().err
    assert sorted(measured.shelf.iterdir()) == written


def test_the_first_side_is_the_one_whose_cost_is_asked_for() -> None:
    large, small = sides(SIZE, 1000)
    assert (large.bytes_per_layer, small.bytes_per_layer) == (1000, 100)
    ssd, dram = sides(SSD, 1000)
    assert (ssd.engram_config["tier"], dram.engram_config["tier"]) == ("ssd", "dram")
    assert ssd.bytes_per_layer == dram.bytes_per_layer
