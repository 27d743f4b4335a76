import mmap
import os
from pathlib import Path

import pytest

from benchmarks.page_cache import drop, resident_share

PAGES = 64


def test_what_was_written_is_resident_until_it_is_dropped(tmp_path: Path) -> None:
    path = _file(tmp_path, PAGES * mmap.PAGESIZE)
    assert resident_share(path) == 1
    drop([path])
    assert resident_share(path) == 0


def test_reading_one_page_brings_its_share_back(tmp_path: Path) -> None:
    path = _file(tmp_path, PAGES * mmap.PAGESIZE)
    drop([path])
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        file.seek(7 * mmap.PAGESIZE)
        file.read(100)
    assert resident_share(path) == 1 / PAGES


def test_looking_does_not_bring_pages_in(tmp_path: Path) -> None:
    path = _file(tmp_path, PAGES * mmap.PAGESIZE)
    drop([path])
    assert [resident_share(path), resident_share(path)] == [0, 0]


@pytest.mark.parametrize("num_bytes", [0, 1, mmap.PAGESIZE + 1])
def test_files_of_odd_lengths(tmp_path: Path, num_bytes: int) -> None:
    path = _file(tmp_path, num_bytes)
    assert resident_share(path) == (num_bytes > 0)
    drop([path])
    assert resident_share(path) == 0


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for ask in (resident_share, lambda path: drop([path])):
        with pytest.raises(FileNotFoundError):
            ask(tmp_path / "none")


def _file(folder: Path, num_bytes: int) -> Path:
    path = folder / "rows"
    path.write_bytes(os.urandom(num_bytes))
    return path
