"""Opens a DeepSeek-V4.1 checkpoint as an artefact whose tables stay where they are.

The format has no checksums. What is verified is that shapes, dtypes and byte spans agree with each
other, with the configuration and with the file's length, and that a table has as many rows as its
primes add up to; a wrong byte inside a table is not noticed. Knows no tiers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram_core.errors import ArtefactError
from engram_core.tables.artefact import Artefact
from engram_core.tables.convert import check_served_by
from engram_core.tables.deepseek_v41 import CONFIG_NAME
from engram_core.tables.float8_reader import Float8Reader
from engram_core.tables.foreign import open_foreign
from engram_core.tables.imported import ImportedMemory
from engram_core.tables.manifest import MANIFEST_NAME, BackboneRecord, Manifest

IN_PLACE = "in place"  # the storage of such an artefact
NO_CHECKSUMS = "shapes, dtypes, byte spans and sums of primes checked, the format has no checksums"
_MARK = b'"engram_layer_ids"'
_RUNS, _RUN_ROWS = 1024, 16  # of a table's rows that enter the content's digest


def is_in_place(folder: Path) -> bool:
    """Whether a folder is no native artefact and its configuration speaks of Engram layers."""
    try:
        is_v41 = _MARK in (folder / CONFIG_NAME).read_bytes()
    except OSError:
        return False
    return is_v41 and not (folder / MANIFEST_NAME).exists()


def open_in_place(
    folder: Path, backbone: BackboneRecord, tokenizer: Any, cache_dir: Path | None = None
) -> Artefact:
    """Open a checkpoint's Engram part for the model that it will be served with.

    The content identifies the files without reading them whole. It is a sha256 over the module's
    weights, over 1024 runs of 16 rows spread evenly over each table (all rows of a small one), and
    over the length and time of change of the files that hold tables: rows between the runs that
    were rewritten show by the time alone, so a copy with another time counts as another memory.

    Args:
        folder: the checkpoint, of one file or of shards with their index.
        backbone: the served model.
        tokenizer: the model's fast tokenizer, or a ready class map.
        cache_dir: folder of built class maps.

    Raises:
        ArtefactError, MismatchError: it is not what its configuration asks for, or is for a model
            of another width or another tokenizer.
        ConfigError: the model has too few layers, or rows have a width that no record has.
    """
    memory = open_foreign(folder, tokenizer=tokenizer, cache_dir=cache_dir)
    tables = tables_of(memory, folder.name)
    manifest = Manifest(
        layout=memory.layout,
        tokenizer=check_served_by(memory, backbone, folder.name),
        backbone=backbone,
        storage=IN_PLACE,
        dtype=next(iter(tables.values())).dtype,
        files={},  # the format has no checksums to record
        training={"imported_from": memory.source_format},
    )
    content = _content(tables, memory.modules)
    return Artefact(folder.name, manifest, tables, memory.modules, content=content)


def tables_of(memory: ImportedMemory, where: str) -> dict[int, Float8Reader]:
    """The tables of a foreign memory, if they can be read where they lie.

    Raises:
        ArtefactError: another format's. ConfigError: rows have a width that no record has.
    """
    tables = {}
    for layer, table in memory.tables.items():
        if not isinstance(table, Float8Reader):
            raise ArtefactError(
                f"{where} is in the format {memory.source_format}, which is not read in place; "
                "accepted: DeepSeek-V4.1, or an artefact made of it by engram-server table convert"
            )
        _ = table.format  # refuses a width
        tables[layer] = table
    return tables


def _content(
    tables: Mapping[int, Float8Reader], modules: Mapping[int, Mapping[str, torch.Tensor]]
) -> str:
    digest = hashlib.sha256()
    for layer, table in sorted(tables.items()):
        states = [part.state for part in table.parts]
        digest.update(json.dumps([layer, table.num_rows, table.row_dim, states]).encode())
        for start, stop in _sampled(table.num_rows):
            digest.update(table.read_records(start, stop).numpy().data)
        for name, weight in sorted(modules[layer].items()):
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            digest.update(weight.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sampled(num_rows: int) -> Iterator[tuple[int, int]]:
    """Runs of rows, spread evenly, the first and the last ones among them."""
    if num_rows <= _RUNS * _RUN_ROWS:
        yield 0, num_rows
        return
    for start in np.linspace(0, num_rows - _RUN_ROWS, _RUNS).astype(np.int64).tolist():
        yield start, start + _RUN_ROWS
