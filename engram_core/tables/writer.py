"""Writes native artefacts: all of it appears at once, or nothing does."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from engram_core.compression import TokenCompressor
from engram_core.errors import ArtefactError, ConfigError
from engram_core.layout import HashLayout
from engram_core.tables.encoding import encode, storage_of
from engram_core.tables.manifest import (
    MANIFEST_NAME,
    BackboneRecord,
    FileRecord,
    Manifest,
    TokenizerRecord,
)
from engram_core.tables.native import MODULE_NAME, module_prefix, table_name
from engram_core.tables.rows import TableRows


@dataclass(frozen=True, slots=True)
class ArtefactContent:
    """What goes into an artefact.

    Attributes:
        layout: configuration and hash constants.
        compressor: the class map that the rows were trained with.
        backbone: the model that the memory was trained for.
        tables: the rows of each Engram layer, all dense or all sparse.
        modules: the weights of each Engram layer, named as in `EngramModule.state_dict`.
        dtype: of the stored rows (see `encoding`).
        training: JSON-ready record of how the memory was made.
        extras: further files by name, such as a licence or the facts.
    """

    layout: HashLayout
    compressor: TokenCompressor
    backbone: BackboneRecord
    tables: Mapping[int, TableRows]
    modules: Mapping[int, Mapping[str, torch.Tensor]]
    dtype: str
    training: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, bytes] = field(default_factory=dict)


def write_artefact(path: Path, content: ArtefactContent) -> None:
    """Write a new artefact folder; an interrupted call leaves no folder of that name.

    Raises:
        ArtefactError: something of that name exists already.
        ConfigError: tables or modules do not fit the layout.
    """
    if path.exists():
        raise ArtefactError(f"{path.name} exists already; accepted: a new name")
    _check(content)
    files = _files(content)
    manifest = _manifest(content, files)
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        for name, blob in {**files, MANIFEST_NAME: manifest.to_json().encode()}.items():
            _write_durably(work / name, blob)
        work.chmod(0o755)
        os.replace(work, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check(content: ArtefactContent) -> None:
    config = content.layout.config
    for name, given in (("tables", content.tables), ("modules", content.modules)):
        if set(given) != set(config.layer_ids):
            raise ConfigError(f"{name} covers layers {sorted(given)}; accepted: {config.layer_ids}")
    for layer, rows in content.tables.items():
        shape = (content.layout.rows[layer], config.head_dim)
        if (rows.num_rows, rows.row_dim) != shape:
            raise ConfigError(
                f"the table of layer {layer} is {(rows.num_rows, rows.row_dim)}; accepted: {shape}"
            )
    if len({storage_of(rows) for rows in content.tables.values()}) != 1:
        raise ConfigError("tables mix dense and sparse rows; accepted: one storage for all layers")
    if content.layout.compressed_size != content.compressor.size:
        raise ConfigError(
            f"the layout was built for {content.layout.compressed_size} token classes; "
            f"accepted: {content.compressor.size}, as the tokenizer has"
        )


def _files(content: ArtefactContent) -> dict[str, bytes]:
    weights = {
        module_prefix(layer) + name: tensor.detach().contiguous()
        for layer, state in content.modules.items()
        for name, tensor in state.items()
    }
    tables = {
        table_name(layer): save(encode(rows, content.dtype))
        for layer, rows in content.tables.items()
    }
    return {MODULE_NAME: save(weights), **tables, **content.extras}


def _manifest(content: ArtefactContent, files: Mapping[str, bytes]) -> Manifest:
    compressor, config = content.compressor, content.layout.config
    keep = config.keeps_unmapped_ids
    return Manifest(
        layout=content.layout,
        tokenizer=TokenizerRecord(
            fingerprint=compressor.fingerprint,
            num_ids=compressor.num_ids,
            compressed_size=compressor.size,
            pad_class=compressor.class_of(config.pad_id, keep_unmapped=keep),
        ),
        backbone=content.backbone,
        storage=storage_of(next(iter(content.tables.values()))),
        dtype=content.dtype,
        files={
            name: FileRecord(len(blob), hashlib.sha256(blob).hexdigest())
            for name, blob in files.items()
        },
        training=content.training,
    )


def _write_durably(path: Path, blob: bytes) -> None:
    with path.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
