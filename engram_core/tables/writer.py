"""Writes native artefacts: all of it appears at once, or nothing does."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from engram_core.errors import ConfigError
from engram_core.layout import HashLayout
from engram_core.tables.artefact import table_name
from engram_core.tables.compressed_file import SUFFIX
from engram_core.tables.encoding import PACKED, encode, storage_of
from engram_core.tables.manifest import (
    COMPRESSIONS,
    MANIFEST_NAME,
    BackboneRecord,
    FileRecord,
    Manifest,
    TokenizerRecord,
)
from engram_core.tables.native import MODULE_NAME, module_prefix
from engram_core.tables.new_folder import new_folder
from engram_core.tables.packed_file import Progress, sum_of_chunks
from engram_core.tables.packed_writer import PackedWriter, Sink, file_bytes
from engram_core.tables.reader import RecordReader
from engram_core.tables.records import RecordFormat
from engram_core.tables.rows import RowReader, RowsReader, TableRows
from engram_core.tables.zstd_frames import FrameWriter, zstandard

_PIECE_ROWS = 1 << 18  # of a packed table, converted at a time


@dataclass(frozen=True, slots=True)
class ArtefactContent:
    """What goes into an artefact.

    Attributes:
        layout: configuration and hash constants.
        tokenizer: the class map that the rows were trained with.
        backbone: the model that the memory was trained for.
        tables: the rows of each Engram layer, all dense or all sparse; readers when `packed`.
        modules: the weights of each Engram layer, named as in `EngramModule.state_dict`.
        dtype: of the stored rows (see `encoding`).
        training: JSON-ready record of how the memory was made.
        extras: further files by name, such as a licence or the facts.
        packed: whether rows are written as records (see `packed_file`).
        compression: of packed tables, ``"none"`` or ``"zstd"`` (see `compressed_file`).
    """

    layout: HashLayout
    tokenizer: TokenizerRecord
    backbone: BackboneRecord
    tables: Mapping[int, TableRows] | Mapping[int, RowReader]
    modules: Mapping[int, Mapping[str, torch.Tensor]]
    dtype: str
    training: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, bytes] = field(default_factory=dict)
    packed: bool = False
    compression: str = "none"

    @property
    def storage(self) -> str:
        """``"dense"``, ``"sparse"`` or ``"packed"``."""
        return PACKED if self.packed else storage_of(next(iter(self.plain_tables.values())))

    @property
    def plain_tables(self) -> Mapping[int, TableRows]:
        """The tables of an artefact that is not packed."""
        found = {k: rows for k, rows in self.tables.items() if isinstance(rows, TableRows)}
        if self.packed or len(found) < len(self.tables):
            raise ConfigError("tables are read piece by piece; accepted: packed=True")
        return found


def write_artefact(
    path: Path, content: ArtefactContent, progress: Progress = lambda _rows: None
) -> None:
    """Write a new artefact folder; an interrupted call leaves no folder of that name.

    `progress` receives the rows of packed tables written since its last call.

    Raises:
        ArtefactError: something of that name exists already, or the disk does not take it all.
        ConfigError: tables or modules do not fit the layout, or no library to compress with.
    """
    _check(content)
    with new_folder(path) as work:
        records = {name: _write_blob(work / name, blob) for name, blob in _blobs(content).items()}
        if content.packed:
            records |= _write_packed(work, content, progress)
        manifest = _manifest(content, records)
        _write_blob(work / MANIFEST_NAME, manifest.to_json().encode())


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
    if not content.packed and len({*map(storage_of, content.plain_tables.values())}) != 1:
        raise ConfigError("tables mix dense and sparse rows; accepted: one storage for all layers")
    if content.compression not in (COMPRESSIONS if content.packed else ("none",)):
        raise ConfigError(
            f"compression is {content.compression!r}; accepted: none, or zstd for packed tables"
        )
    if content.compression == "zstd":
        zstandard()  # refused before anything is read
    if content.layout.compressed_size != content.tokenizer.compressed_size:
        raise ConfigError(
            f"the layout was built for {content.layout.compressed_size} token classes; "
            f"accepted: {content.tokenizer.compressed_size}, as the tokenizer has"
        )


def _blobs(content: ArtefactContent) -> dict[str, bytes]:
    weights = {
        module_prefix(layer) + name: tensor.detach().contiguous()
        for layer, state in content.modules.items()
        for name, tensor in state.items()
    }
    tables = {} if content.packed else content.plain_tables
    encoded = {
        table_name(layer): save(encode(rows, content.dtype)) for layer, rows in tables.items()
    }
    return {MODULE_NAME: save(weights), **encoded, **content.extras}


def _write_packed(
    folder: Path, content: ArtefactContent, progress: Progress
) -> dict[str, FileRecord]:
    named: dict[str, RowReader] = {
        table_name(layer): RowsReader(rows) if isinstance(rows, TableRows) else rows
        for layer, rows in content.tables.items()
    }
    if content.compression == "zstd":
        return {
            name: _write_compressed(folder / name, rows, content.dtype, progress)
            for name, rows in ((f"{name}{SUFFIX}", rows) for name, rows in named.items())
        }
    for name, rows in named.items():
        _reserve(folder / name, rows, content.dtype)
    return {
        name: _write_table(folder / name, rows, content.dtype, progress)
        for name, rows in named.items()
    }


def _reserve(path: Path, rows: RowReader, dtype: str) -> None:
    """A file of the table's size, so that a full disk says so before hours of work.

    Raises:
        OSError: there is no room.
    """
    num_bytes = file_bytes(RecordFormat(dtype, rows.row_dim), rows.num_rows)
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # file systems without it
                raise


def _write_table(path: Path, rows: RowReader, dtype: str, progress: Progress) -> FileRecord:
    with path.open("r+b") as file:
        num_bytes, chunks = _write_rows(file, rows, dtype, progress)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(num_bytes, sum_of_chunks(chunks), chunks)


def _write_compressed(path: Path, rows: RowReader, dtype: str, progress: Progress) -> FileRecord:
    with path.open("wb") as file:
        frames = FrameWriter(file)
        num_bytes, chunks = _write_rows(frames, rows, dtype, progress)
        frame_bytes, sums = frames.finish()
        file.flush()
        os.fsync(file.fileno())
    expanded = FileRecord(num_bytes, sum_of_chunks(chunks), chunks)
    return FileRecord(sum(frame_bytes), sum_of_chunks(sums), sums, frame_bytes, expanded)


def _write_rows(
    sink: Sink, rows: RowReader, dtype: str, progress: Progress
) -> tuple[int, tuple[str, ...]]:
    """All rows of a table as records; returns their file's bytes and its chunks' checksums."""
    writer = PackedWriter(sink, RecordFormat(dtype, rows.row_dim), rows.num_rows)
    for start in range(0, rows.num_rows, _PIECE_ROWS):
        stop = min(start + _PIECE_ROWS, rows.num_rows)
        if isinstance(rows, RecordReader) and dtype == rows.dtype:
            writer.append_records(rows.read_records(start, stop).numpy())  # bit by bit
        else:
            writer.append(rows.read(start, stop))
        progress(stop - start)
    return writer.finish()


def _manifest(content: ArtefactContent, files: Mapping[str, FileRecord]) -> Manifest:
    return Manifest(
        layout=content.layout,
        tokenizer=content.tokenizer,
        backbone=content.backbone,
        storage=content.storage,
        dtype=content.dtype,
        files=files,
        training=content.training,
        compression=content.compression,
    )


def _write_blob(path: Path, blob: bytes) -> FileRecord:
    with path.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(len(blob), hashlib.sha256(blob).hexdigest())
