"""The lines of `engram-server pull`."""

import io

import pytest

from server.progress_lines import ProgressLines


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "step"), [(io.StringIO(), 10), (Terminal(), 1)])
def test_a_line_is_written_once_a_step(stream, step):
    show = ProgressLines(stream)
    for done in range(1001):
        show("convert", done / 1000)
    expected = [f"convert: {percent}%" for percent in range(0, 101, step)]
    assert stream.getvalue().splitlines() == expected


def test_phases_count_by_themselves():
    stream = io.StringIO()
    show = ProgressLines(stream)
    for phase, fraction in (("download", 0.0), ("convert", 0.04), ("download", 1.0)):
        show(phase, fraction)
    assert stream.getvalue().splitlines() == ["download: 0%", "convert: 0%", "download: 100%"]
