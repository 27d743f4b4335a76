"""The built wheel works by itself: a new environment, an empty folder, nothing of this tree.

The environment borrows torch and the other dependencies from the one that runs the tests; the
project comes from the wheel alone.
"""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from model_folder import write_memory, write_model
from sources import PACKAGES, ROOT, name

from benchmarks.server_process import serve

BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy so that the build leaves nothing in the tree."""
    source = tmp_path_factory.mktemp("source")
    for folder in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    for file in BUILT_FROM:
        shutil.copy(ROOT / file, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return next((source / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory) -> Path:
    """The installed `engram-server`."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    borrowed = sysconfig.get_path("purelib")
    # a path in a .pth file: the packages there are found, its own .pth files are not followed
    Path(site, "borrowed.pth").write_text(f"{borrowed}\n")
    return folder / "bin" / "engram-server"


def test_wheel_holds_the_packages_and_their_data(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {name(p) for p in _package_files() if p.suffix in {".py", ".typed"}}
    data = {name(p) for p in _package_files() if "server/data/" in name(p)}
    assert expected | data <= held
    assert not any(n.startswith(("tests/", "benchmarks/", "docs/")) for n in held)
    assert any(n.endswith("licenses/NOTICE") for n in held)


def test_installed_command_comes_from_the_wheel(program: Path, tmp_path: Path) -> None:
    code = "import engram_core, server; print(engram_core.__file__, server.__file__)"
    python = program.with_name("python")
    shown = subprocess.check_output([python, "-c", code], cwd=tmp_path, text=True)
    assert str(ROOT) not in shown


def test_installed_command_tells_its_version_and_flags(program: Path, tmp_path: Path) -> None:
    version = subprocess.check_output([program, "version"], cwd=tmp_path, text=True)
    assert "0.1.0" in version
    flags = subprocess.check_output([program, "serve", "--help"], cwd=tmp_path, text=True)
    assert "--engram-config" in flags


def test_installed_command_serves_from_an_empty_folder(program: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    memory = write_memory(tmp_path / "memory", model)
    empty = tmp_path / "empty"
    empty.mkdir()
    arguments = [str(model), "--engram", str(memory), "--max-model-len", "128"]
    with serve(arguments, program=[str(program)], folder=empty) as served:
        answers = [served.answer("hello", max_new_tokens=6, memory=m) for m in (True, False)]
        assert served.info()["engram"]["enabled"] is True
    assert answers[0] != answers[1]
    assert not list(empty.iterdir())


@pytest.mark.slow
def test_installed_command_serves_the_default_model(program: Path, tmp_path: Path) -> None:
    """What `engram-server serve` gives a user who installed it and names nothing."""
    with serve([], program=[str(program)], folder=tmp_path) as served:
        assert served.info()["engram"]["enabled"] is True
        answer = served.answer("The capital of Botswana is", max_new_tokens=8, memory=True)
        plain = served.answer("The capital of Botswana is", max_new_tokens=8, memory=False)
    assert answer.startswith(" Gaborone.")
    assert answer != plain


def _package_files() -> list[Path]:
    return [
        path
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
