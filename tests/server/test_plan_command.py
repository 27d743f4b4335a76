"""`engram-server plan`: its table, its JSON, and one sentence for every wrong flag."""

import json
import pydoc_data.topics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from server import cli
from server.plan_options import OPTIONS, parse_count

TOKENIZER = Path(__file__).parents[1] / "golden" / "demo_v1" / "tokenizers" / "tiny_bytelevel"
TABLES = ["--orders", "2,3", "--num-heads", "8", "--row-dim", "64", "--dtype", "bfloat16"]
DEMO = ["--rows-per-head", "646400", "--num-layers", "2", *TABLES]
V41 = [
    "--rows", "384006168,384016682", "--orders", "2,3,4", "--num-heads", "8",
    "--row-dim", "256", "--dtype", "fp8",
]  # fmt: skip
ASKED = ["--tokens-per-s", "5000", "--zipf", "1"]


def run(capsys, *arguments):
    code = cli.main(["plan", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_table_says_sizes_tiers_borders_and_the_verdict(capsys):
    code, out, err = run(capsys, *DEMO, *ASKED, "--dram", "1GiB", "--ssd-iops", "20K")
    assert (code, err) == (0, "")
    assert "10,344,164, 10,348,242 per layer" in out
    assert "128 bytes (64 x bfloat16 and 0 bytes of scales), 32 in a 4 KiB page" in out
    assert "1.233 GiB, 1.234 GiB per layer, 2.467 GiB in all" in out
    assert "the Engram paper found 20% to 25% best" in out
    assert "DRAM" in out
    assert "SSD" in out
    assert "target      5,000 tokens/s: met" in out
    assert "bottleneck  ssd_iops: " in out


def test_json_holds_the_same_and_more(capsys):
    hosts = ["--dram", "100GiB", "--num-hosts", "2", "--network-bandwidth", "3GB"]
    model = ["--backbone-parameters", "671B", "--active-parameters", "37B"]
    code, out, err = run(capsys, *V41, *ASKED, *hosts, *model, "--json")
    assert (code, err) == (0, "")
    made = json.loads(out)
    assert round(made["total_bytes"] / 2**30) == 189
    assert made["rows_per_token"] == 48
    assert made["shard_heads"] == 4
    assert made["memory_share"] == pytest.approx(0.2367, abs=1e-4)
    assert made["best_memory_share"] == [0.2, 0.25]
    assert sum(tier["share"] for tier in made["tiers"]) == pytest.approx(1)
    assert made["target_met"] is True
    assert made["bottleneck"] == "network_bandwidth"
    assert made["host"] == []


def test_a_text_is_counted(capsys, tmp_path):
    topics = pydoc_data.topics.topics
    (tmp_path / "text").write_text("\n".join(sorted(topics.values())), encoding="utf-8")
    counted = ["--token-file", str(tmp_path / "text"), "--tokenizer", str(TOKENIZER)]
    budget = ["--dram", "120MB", "--ssd-iops", "1M"]
    code, out, _ = run(capsys, *DEMO, "--tokens-per-s", "10", *counted, *budget, "--json")
    made = json.loads(out)
    assert code == 0
    assert made["access"]["pattern"] == "counted"
    assert made["access"]["tokens"] > 100_000
    dram = next(tier["share"] for tier in made["tiers"] if tier["name"] == "dram")
    assert 0.5 < dram < 1 - made["access"]["unseen_share"]


def test_host_memory_that_a_cache_cannot_use_is_said(capsys):
    code, out, _ = run(capsys, *DEMO, *ASKED, "--dram", "10MB", "--ssd-iops", "1M")
    assert code == 0
    assert "before the SSD: 98.67 MiB for its map of all rows, 144 bytes a row kept" in out
    assert "DRAM" not in out


def test_ids_are_counted(capsys, tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(5000) % 7)
    counted = ["--tokens-per-s", "10", "--token-file", str(tmp_path / "ids.npy")]
    code, out, _ = run(capsys, *DEMO, *counted, "--dram", "10MB", "--ssd-iops", "1000")
    assert code == 0
    assert "counted in 5,000 tokens, 0.0% of the reads new to it" in out


def test_rows_without_a_place_are_said(capsys):
    code, out, _ = run(capsys, *DEMO, *ASKED)
    assert code == 0
    assert "NO PLACE" in out
    assert "5,000 tokens/s: NOT met" in out
    assert "capacity: 2.467 GiB of rows have no place on a host" in out


def test_the_host_is_checked_when_asked(capsys):
    code, out, _ = run(capsys, *V41, *ASKED, "--dram", "100000TiB", "--check-host")
    assert code == 0
    lines = out.splitlines()[-7:]
    assert all(line.startswith(("ok", "CHANGE")) for line in lines)
    assert any("195.32 GiB of rows are planned in its DRAM" in line for line in lines)
    code, out, _ = run(capsys, *V41, *ASKED, "--dram", "1TiB", "--check-host", "--json")
    assert len(json.loads(out)["host"]) == 7


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dram", "lots"], "--dram is 'lots'; accepted: bytes, or a number with KB, MB, GB"),
        (["--num-hosts", "two"], "--num-hosts is 'two'; accepted: a whole number, or a number wi"),
        (["--ssd-iops", "2.5"], "--ssd-iops is '2.5'; accepted: a whole number"),
        (["--extra-latency-ns", "x"], "--extra-latency-ns is 'x'; accepted: a number"),
        (
            ["--num-hosts", "9", "--network-bandwidth", "1GB"],
            "num_hosts is 9; accepted: up to num_heads (8): rows are sharded",
        ),
        (["--num-hosts", "2"], "network_bandwidth is None; accepted: bytes per second above 0 fo"),
        (["--zipf", "5"], "zipf is 5.0; accepted: a number from 0 to 4"),
        (["--zipf", "nan"], "zipf is nan; accepted: a number from 0 to 4"),
        (["--tokens-per-s", "inf"], "--tokens-per-s is 'inf'; accepted: a whole number, or a num"),
        (["--tokens-per-s", "0"], "tokens_per_s is 0; accepted: a number from 0.001 to 1e+12"),
        (["--dtype", "fp4"], "dtype is 'fp4'; accepted: bfloat16, float16, int8, fp8, int4"),
        (
            ["--orders", "3,2"],
            "orders is [3, 2]; accepted: distinct ascending numbers from 2 to 64",
        ),
        (["--orders", "2,,3"], "--orders is '2,,3'; accepted: a whole number, or a number with"),
        (["--rows", "5"], "rows is (5,) and rows_per_head 646400; accepted: one of them"),
        (["--token-file", "folder/x"], "zipf is 1.0 and token_file 'x'; accepted: one of them"),
        (["--tokenizer", "folder/x"], "tokenizer is 'x'; accepted: only with token_file"),
        (["--active-parameters", "1"], "backbone_parameters is None; accepted: a whole number"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_2(capsys, arguments, sentence):
    code, out, err = run(capsys, *DEMO, *ASKED, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"engram-server: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*TABLES, *ASKED], "rows is None and rows_per_head None; accepted: one of them"),
        (["--rows-per-head", "99", *TABLES, *ASKED], "num_layers is None; accepted: a whole"),
        (
            ["--rows", "99,99", "--num-layers", "3", *TABLES, *ASKED],
            "num_layers is 3 and rows has 2 numbers; accepted: one number of rows for 1 to 4096",
        ),
        ([*DEMO, "--tokens-per-s", "1"], "zipf is None and token_file None; accepted: one of them"),
        (
            [*DEMO, "--tokens-per-s", "1", "--token-file", "none.npy"],
            "token_file is 'none.npy', which does not exist; accepted: a file",
        ),
    ],
)
def test_what_is_missing_is_one_line_and_exit_2(capsys, arguments, sentence):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"engram-server: {sentence}")


def test_ids_beyond_the_tokenizer_are_one_line_and_exit_1(capsys, tmp_path):
    np.save(tmp_path / "ids.npy", np.full(2000, 10**6))
    counted = ["--token-file", str(tmp_path / "ids.npy"), "--tokenizer", str(TOKENIZER)]
    code, _, err = run(capsys, *DEMO, "--tokens-per-s", "1", *counted)
    assert code == 1
    assert err.startswith("engram-server: token id 1000000 is out of range; accepted: below")


def test_a_row_format_may_be_called_as_tables_call_it(capsys):
    asked = ["--rows", "1M", "--num-layers", "2", *TABLES[:-1]]
    plans = [run(capsys, *asked, dtype, *ASKED) for dtype in ("fp8", "float8_e4m3")]
    assert plans[0] == plans[1]
    assert plans[0][0] == 0


def test_one_number_of_rows_stands_for_all_layers(capsys):
    code, out, _ = run(capsys, "--rows", "1M", "--num-layers", "3", *TABLES, *ASKED, "--json")
    assert code == 0
    assert json.loads(out)["rows"] == [10**6] * 3


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for option in OPTIONS:
        assert option.flag in text
        assert option.text.split()[0] in text
    assert "Exit codes: 0" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8", 8), ("16M", 16_000_000), ("0.5k", 500), ("671B", 671 * 10**9), ("1.5T", 15 * 10**11)],
)
def test_counts(text, expected):
    assert parse_count(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e6", "12Q", "0.0001K", "M", "1_000"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError, match="accepted: a whole number"):
        parse_count(text)


def test_a_plan_needs_no_torch():
    arguments = ["plan", *DEMO, *ASKED, "--dram", "8GiB"]
    program = (
        f"import sys; from server import cli; cli.main({arguments!r});"
        "print([m for m in ('torch', 'transformers', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
