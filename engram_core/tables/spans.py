"""Checks which bytes an artefact's safetensors files say their tensors lie in.

Opening an artefact compares checksums, which say only that something is wrong; this says what.
"""

from __future__ import annotations

from pathlib import Path

from engram_core.errors import MismatchError
from engram_core.tables.manifest import Manifest
from engram_core.tables.safetensors_file import SafetensorsFile
from engram_core.tables.tensor_source import SUFFIX


def check_spans(folder: Path) -> None:
    """Refuse a file of another length than the manifest says, or with gaps between its tensors.

    Files that are missing or not plain names are left to `open_table`.

    Raises:
        ArtefactError: the manifest or a file cannot be read.
        MismatchError: names the file, the tensor and both values.
    """
    for name, record in Manifest.read(folder).files.items():
        path = folder / name
        if path.suffix != SUFFIX or Path(name).name != name or not path.is_file():
            continue
        size = path.stat().st_size
        if size != record.bytes:
            raise MismatchError("bytes", expected=record.bytes, found=size, where=name)
        SafetensorsFile(path)
