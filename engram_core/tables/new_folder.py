"""Makes a folder that appears whole or not at all, and drops what killed processes left of it.

Whoever fills a folder holds a lock on it, which ends with the process however it ends: a folder
that nobody holds is nobody's. Knows no artefacts.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engram_core.errors import ArtefactError

_RANDOM = "[a-z0-9_]{8}"  # what tempfile appends


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes the name `path` when the block ends without an error.

    Raises:
        ArtefactError: something of that name exists already, or the disk did not take what was
            written; nothing of it is kept then.
    """
    if path.exists():
        raise ArtefactError(f"{path.name} exists already; accepted: a new name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _work_folder(path) as work:
            yield work
            work.chmod(0o755)
            os.replace(work, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArtefactError(
            f"{path.name} cannot be written ({reason}) and nothing of it was kept; accepted: a "
            "folder that may be written to and has room for all of it"
        ) from None


@contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    with ExitStack() as held:
        with _locked(path.parent, fcntl.LOCK_EX):  # nobody sees a folder between these two lines
            _remove_leftovers(path)
            work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
            held.enter_context(_locked(work, fcntl.LOCK_EX | fcntl.LOCK_NB))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _remove_leftovers(path: Path) -> None:
    """Drop the folders of killed processes; those that somebody fills are locked and stay."""
    pattern = re.compile(rf"\.{re.escape(path.name)}-{_RANDOM}")
    for found in [each for each in path.parent.iterdir() if pattern.fullmatch(each.name)]:
        with _locked(found, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_mine:
            if is_mine:
                shutil.rmtree(found, ignore_errors=True)


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[bool]:
    """Whether a folder could be locked; file systems without locks count as held by others."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(handle, how)
    finally:
        os.close(handle)


def _lock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how)
    except OSError:
        return False
    return True
