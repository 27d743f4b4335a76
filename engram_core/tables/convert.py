"""Packs memories into native artefacts: native ones in another row format, and foreign ones.

Knows tables; knows no command line and loads no model.
"""

from __future__ import annotations

from pathlib import Path

from engram_core.errors import ConfigError, MismatchError
from engram_core.tables.artefact import Artefact
from engram_core.tables.encoding import PACKED
from engram_core.tables.imported import ImportedMemory
from engram_core.tables.manifest import BackboneRecord, Manifest, TokenizerRecord
from engram_core.tables.packed_file import Progress
from engram_core.tables.rows import RowReader, RowsReader, TableRows
from engram_core.tables.writer import ArtefactContent, write_artefact


def pack_artefact(
    source: Artefact,
    folder: Path,
    dtype: str,
    progress: Progress = lambda _rows: None,
    compression: str = "none",
) -> None:
    """Write `source` as a packed artefact of `dtype` to the new folder `folder`.

    Values pass through bf16, which is what a row is; a packed table that stays in its format keeps
    its stored bytes. An interrupted call leaves nothing of that name.

    Args:
        source: an opened artefact of any storage, compressed or not.
        folder: the new artefact.
        dtype: see `records.RecordFormat`.
        progress: receives rows as they are written.
        compression: ``"zstd"`` for an artefact to be copied elsewhere and expanded there.

    Raises:
        ArtefactError: `folder` exists, or cannot be written.
        ConfigError: a dtype that the rows cannot be packed in, or no library to compress with.
    """
    manifest, layers = source.manifest, source.config.layer_ids
    content = ArtefactContent(
        layout=source.layout,
        tokenizer=manifest.tokenizer,
        backbone=manifest.backbone,
        tables={layer: reader(source, layer) for layer in layers},
        modules={layer: source.module_state(layer) for layer in layers},
        dtype=dtype,
        training=_training(manifest, dtype),
        extras=source.extras(),
        packed=True,
        compression=compression,
    )
    write_artefact(folder, content, progress)


def pack_foreign(
    source: ImportedMemory,
    backbone: BackboneRecord,
    folder: Path,
    dtype: str,
    progress: Progress = lambda _rows: None,
    compression: str = "none",
) -> None:
    """Write a foreign memory as a packed artefact for the model `backbone`.

    A float8_e4m3 table that stays one keeps its stored bytes.

    Args:
        source: what an importer read, with its class map.
        backbone: the model that will be served with it.
        folder: the new artefact.
        dtype: see `records.RecordFormat`.
        progress: receives rows as they are written.
        compression: see `pack_artefact`.

    Raises:
        ArtefactError: `folder` exists, or cannot be written.
        ConfigError: the tokenizer is missing, or a dtype that the rows cannot be packed in.
        MismatchError: the memory is for a model of another shape.
    """
    content = ArtefactContent(
        layout=source.layout,
        tokenizer=check_served_by(source, backbone, folder.name),
        backbone=backbone,
        tables=source.tables,
        modules=source.modules,
        dtype=dtype,
        training={"imported_from": source.source_format},
        packed=True,
        compression=compression,
    )
    write_artefact(folder, content, progress)


def check_served_by(
    source: ImportedMemory, backbone: BackboneRecord, where: str
) -> TokenizerRecord:
    """What an artefact records of a foreign class map, if `backbone` can be served with it.

    Raises:
        ConfigError: the tokenizer is missing, or the model has too few layers.
        MismatchError: the memory is for a model of another width.
    """
    config = source.config
    if source.compressor is None:
        raise ConfigError("the memory has no class map; accepted: its tokenizer beside it")
    if config.hidden_size != backbone.hidden_size:
        expected, found = config.hidden_size, backbone.hidden_size
        raise MismatchError("hidden size", expected=expected, found=found, where=where)
    if max(config.layer_ids) >= backbone.num_layers:
        raise ConfigError(
            f"layer_ids is {config.layer_ids}; accepted for {backbone.name}: layers 0 to "
            f"{backbone.num_layers - 1}"
        )
    return TokenizerRecord.of(source.compressor, config)


def reader(source: Artefact, layer: int) -> RowReader:
    """A layer's table, piece by piece."""
    if source.is_compressed:
        return source.compressed(layer)
    rows = source.rows(layer)
    return RowsReader(rows) if isinstance(rows, TableRows) else rows


def _training(manifest: Manifest, dtype: str) -> dict[str, object]:
    """How the memory was made, and that its rows were packed since, where they were."""
    if (manifest.storage, manifest.dtype) == (PACKED, dtype):
        return {**manifest.training}
    made_from = {"storage": manifest.storage, "dtype": manifest.dtype}
    return {**manifest.training, "packed_from": made_from}
