import json

import pytest
from model_folder import write_memory, write_model

from benchmarks import start_up
from benchmarks.http_streams import fairness, main
from benchmarks.run_times import RunTimes


def test_fairness_counts_with_and_without_the_wait() -> None:
    times = [[1.0, 2.0, 3.0], [7.0, 9.0, 11.0]]
    found = fairness(RunTimes(0.0, times, [[1, 2, 3]] * 2))
    assert (found.num_streams, found.last_first_token_s) == (2, 7.0)
    assert (found.mean_rate, found.slowest_rate) == (0.75, 0.5)
    assert found.slowest_share == pytest.approx(0.5 / 0.75)
    assert found.slowest_share_with_wait == pytest.approx((3 / 11) / ((1 + 3 / 11) / 2))


def test_streams_of_real_servers_beside_their_engine(tmp_path, capsys) -> None:
    model = write_model(tmp_path / "model")
    memory = write_memory(tmp_path / "memory", model)
    report = tmp_path / "report.json"
    small = ["--dtype", "float32", "--rounds", "1", "--context", "16", "--new-tokens", "32"]
    small += ["--streams", "4", "--many", "20", "--split"]
    chosen = ["--model", str(model), "--engram", str(memory), "--output", str(report)]
    assert main([*chosen, *small]) == 0
    found = json.loads(report.read_text())
    names = [entry["name"] for entry in found["comparison"]["entries"]]
    assert names == ["engine", "engram-server HTTP", "HTTP by benchmarks.split_server"]
    assert all(entry["same_answers"] == 1.0 for entry in found["comparison"]["entries"])
    assert set(found["shares"]) == set(names[1:])
    assert found["many"]["num_streams"] == 20
    assert "20 streams, none failed" in capsys.readouterr().out


def test_a_start_is_timed_and_its_memory_told(tmp_path, capsys) -> None:
    model = write_model(tmp_path / "model")
    report = tmp_path / "report.json"
    flags = ["--starts", "1", "--prompt-words", "5", "--output", str(report)]
    assert start_up.main([*flags, str(model), "--engram", "none"]) == 0
    (start,) = json.loads(report.read_text())["starts"]
    assert start["ready_s"] == pytest.approx(sum(start["phases_s"].values()))
    assert all(seconds >= 0 for seconds in start["phases_s"].values())
    assert start["used_rss_bytes"] > 0
    assert "resident when ready" in capsys.readouterr().out
