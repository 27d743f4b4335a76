"""The measurement of remote rows runs and says what it measured."""

import json

from benchmarks import remote_rows


def test_it_measures_the_read_and_the_tier(tmp_path, capsys):
    report = tmp_path / "rows.json"
    arguments = ["--rows", "1000", "--row-dim", "4", "--repeats", "2", "--output", str(report)]
    assert remote_rows.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.count("FlightRowSource.read_rows") == out.count("RemoteTier.gather") == 3
    seconds = json.loads(report.read_text())["seconds"]
    assert all(len(s) == 2 for by_count in seconds.values() for s in by_count.values())
