"""A new folder appears whole or not at all; what the dead left is cleared, the living are not."""

import fcntl
import os

import pytest

from engram_core.errors import ArtefactError
from engram_core.tables.new_folder import new_folder


def test_it_appears_when_it_is_whole(tmp_path):
    with new_folder(tmp_path / "deep" / "a") as work:
        (work / "file").write_text("whole")
        assert not (tmp_path / "deep" / "a").exists()
    assert (tmp_path / "deep" / "a" / "file").read_text() == "whole"
    assert os.listdir(tmp_path / "deep") == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path, error):
    def fail():
        with new_folder(tmp_path / "a") as work:
            (work / "file").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert os.listdir(tmp_path) == []


def test_leftovers_of_that_name_go_and_nothing_else(tmp_path):
    for name in (".a-0123abc_", ".b-0123abc_", ".a-0123abc_-0123abc_", ".a-short", "a-0123abc_"):
        (tmp_path / name).mkdir()
    with new_folder(tmp_path / "a"):
        pass
    assert sorted(os.listdir(tmp_path)) == [
        ".a-0123abc_-0123abc_", ".a-short", ".b-0123abc_", "a", "a-0123abc_"
    ]  # fmt: skip


def test_two_at_once_do_not_clear_each_other(tmp_path):
    with new_folder(tmp_path / "a") as first:
        (first / "file").write_text("first")
        with new_folder(tmp_path / "b"):
            pass
        second = new_folder(tmp_path / "a")
        (second.__enter__() / "file").write_text("second")
        assert (first / "file").read_text() == "first"
    with pytest.raises(ArtefactError, match="a cannot be written"):
        second.__exit__(None, None, None)
    assert (tmp_path / "a" / "file").read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_file_system_without_locks_keeps_leftovers(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", unknown)
    (tmp_path / ".a-01234567").mkdir()
    with new_folder(tmp_path / "a"):
        pass
    assert sorted(os.listdir(tmp_path)) == [".a-01234567", "a"]


def test_a_taken_name_is_refused(tmp_path):
    (tmp_path / "a").write_text("a file")
    for name, text in (("a", "a exists already"), ("a/b", "b cannot be written")):
        with pytest.raises(ArtefactError, match=text), new_folder(tmp_path / name):
            pass
