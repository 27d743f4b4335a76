"""Writes a copy of an artefact whose rows lie at wrong addresses; everything else is the same."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.permutation import shuffle_within_heads
from engram_core.tables.artefact import table_name
from engram_core.tables.manifest import MANIFEST_NAME, FileRecord, Manifest

SPARSE_IDS = "row_ids"
DENSE_ROWS = "rows"


def write_permuted(source: Path, target: Path, seed: int) -> None:
    """Copy the artefact `source` to the new folder `target` with each head's rows shuffled."""
    shutil.copytree(source, target)
    manifest = Manifest.read(source)
    files = dict(manifest.files)
    for layer, offsets in manifest.layout.offsets.items():
        path = target / table_name(layer)
        save_file(_shuffled(load_file(path), offsets, seed + layer), path)
        files[path.name] = _record(path)
    text = replace(manifest, files=files).to_json()
    (target / MANIFEST_NAME).write_text(text, encoding="utf-8")


def _shuffled(
    tensors: dict[str, torch.Tensor], first_rows: tuple[int, ...], seed: int
) -> dict[str, torch.Tensor]:
    """A table's tensors with their rows shuffled; stored codes are moved, not converted."""
    if SPARSE_IDS in tensors:
        row_ids = tensors[SPARSE_IDS].to(torch.int64)
        order = torch.from_numpy(shuffle_within_heads(row_ids.numpy(), first_rows, seed))
        return {k: v if k == SPARSE_IDS else v[order].contiguous() for k, v in tensors.items()}
    rows = tensors[DENSE_ROWS]
    written = torch.nonzero(rows.any(dim=1)).flatten()  # [written rows]
    order = torch.from_numpy(shuffle_within_heads(written.numpy(), first_rows, seed))
    shuffled = rows.clone()
    shuffled[written] = rows[written[order]]
    return {DENSE_ROWS: shuffled}


def _record(path: Path) -> FileRecord:
    blob = path.read_bytes()
    return FileRecord(len(blob), hashlib.sha256(blob).hexdigest())
