"""`engram-server table convert` on a full disk, and killed at every step: all of it or nothing."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from artefacts import tiny_content

from engram_core.tables import open_table, write_artefact
from server.artefact_choice import list_artefacts
from server.cli import main

ROOT = Path(__file__).parents[2]
ROWS = {"rows_per_head": (20_011, 20_011)}  # a megabyte in each layer's int8 table
LIMIT_BYTES = 1_500_000  # room for one of them

LIMITED = """
import resource, sys
from server.cli import main
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(["table", "convert", *sys.argv[2:]]))
"""

SLOW = """
import os, sys, time
from pathlib import Path
from engram_core.tables import writer
from server.cli import main
place, name, marker = sys.argv[1:4]
owner = os if place == "os" else writer
original = getattr(owner, name)
def stop(*given, **named):
    if name != "replace":
        original(*given, **named)
    Path(marker).touch()
    time.sleep(60)
setattr(owner, name, stop)
sys.exit(main(["table", "convert", *sys.argv[4:]]))
"""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source" / "tiny"
    write_artefact(folder, tiny_content(storage="dense", dtype="bfloat16", **ROWS))
    return folder


@contextmanager
def small_disk(folder):
    """A file system of its own, as large as `LIMIT_BYTES`; skips where none can be mounted."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={LIMIT_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def convert(source, target, *flags, limit=0):
    words = [str(source), str(target), *flags]
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *words],
        capture_output=True, text=True, cwd=ROOT, timeout=200, check=False,
    )  # fmt: skip


def refused(done, reason):
    assert (done.returncode, done.stdout) == (1, "")
    said = [line for line in done.stderr.splitlines() if not line.startswith("convert: ")]
    assert said == [
        f"engram-server: new cannot be written ({reason}) and nothing of it was kept; accepted: "
        "a folder that may be written to and has room for all of it"
    ]


@pytest.mark.parametrize("flags", [(), ("--compress", "zstd", "--dtype", "bfloat16")])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(source, tmp_path, capsys, flags):
    with small_disk(tmp_path / "disk") as disk:
        refused(convert(source, disk / "new", *flags), "No space left on device")
        assert os.listdir(disk) == []
    assert main(["table", "verify", str(source)]) == 0


def test_a_full_disk_says_so_before_the_first_row(source, tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        assert "convert: " not in convert(source, disk / "new").stderr


@pytest.mark.parametrize("flags", [(), ("--compress", "zstd")])
def test_a_file_too_large_is_one_sentence_and_leaves_nothing(source, tmp_path, flags):
    target = tmp_path / "out" / "new"
    refused(convert(source, target, *flags, limit=500_000), "File too large")
    assert os.listdir(tmp_path / "out") == []
    assert convert(source, target, *flags).returncode == 0


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("writer", "_reserve"),
        ("writer", "_write_table"),
        ("writer", "_manifest"),
        ("writer", "_write_blob"),
        ("os", "replace"),
    ],
)
def test_a_killed_conversion_is_never_taken_for_whole(source, tmp_path, capsys, place, name):
    shelf = tmp_path / "shelf"
    command = [sys.executable, "-c", SLOW, place, name, str(tmp_path / "marker")]
    with subprocess.Popen([*command, str(source), str(shelf / "new")], cwd=ROOT) as process:
        try:
            _wait_for(tmp_path / "marker", process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert not (shelf / "new").exists()
    assert len(os.listdir(shelf)) == 1  # what it left, under no name that anybody asks for
    assert shelf not in [each.parent for each in list_artefacts("auto", shelf)]
    assert main(["table", "convert", str(source), str(shelf / "new")]) == 0
    assert main(["table", "verify", str(shelf / "new")]) == 0
    assert os.listdir(shelf) == ["new"]
    assert open_table(shelf / "new").layout == open_table(source).layout


def _wait_for(marker, process):
    deadline = time.monotonic() + 120
    while not marker.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
