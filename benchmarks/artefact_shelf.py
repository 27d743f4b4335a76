"""ArtefactShelf: synthetic artefacts in a folder, written where they are missing."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from benchmarks.synthetic_memory import SyntheticMemory
from server.sizes import format_size


class ArtefactShelf:
    """A folder of artefacts; use as a context manager.

    At its end what it wrote is removed again, unless it shall be kept. What was there before stays.

    Args:
        folder: where they lie; None means a temporary one.
        keep: whether to leave what was written.
    """

    def __init__(self, folder: Path | None, *, keep: bool) -> None:
        self._is_temporary = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="offload-"))
        self._keep = keep
        self._written: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._keep:
            return
        for path in self._written:
            shutil.rmtree(path)
        if self._is_temporary:
            self._folder.rmdir()

    def place(self, memory: SyntheticMemory) -> Path:
        """The artefact's folder. Raises ArtefactError when another memory lies there."""
        path = self._folder / f"rows-{memory.bytes_per_layer}"
        if not memory.is_there(path):
            start_s = time.monotonic()
            memory.write(path)
            self._written.append(path)
            size = format_size(memory.bytes_per_layer)
            _say(f"{path}: {size} a layer, written in {time.monotonic() - start_s:.0f} s")
        return path


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
