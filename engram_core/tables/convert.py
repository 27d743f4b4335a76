"""Packs a native artefact's tables into another row format. Knows tables; knows no command line."""

from __future__ import annotations

from pathlib import Path

from engram_core.tables.manifest import Manifest
from engram_core.tables.native import Artefact
from engram_core.tables.packed_file import PackedFile, Progress
from engram_core.tables.rows import RowReader, RowsReader
from engram_core.tables.writer import ArtefactContent, write_artefact


def pack_artefact(
    source: Artefact, folder: Path, dtype: str, progress: Progress = lambda _rows: None
) -> None:
    """Write `source` as a packed artefact of `dtype` to the new folder `folder`.

    Values pass through bf16, which is what a row is; packing to the format that a table has already
    gives the same values. An interrupted call leaves nothing of that name.

    Args:
        source: an opened artefact of any storage.
        folder: the new artefact.
        dtype: see `records.RecordFormat`.
        progress: receives rows as they are written.

    Raises:
        ArtefactError: `folder` exists. ConfigError: a dtype that the rows cannot be packed in.
    """
    manifest, layers = source.manifest, source.config.layer_ids
    content = ArtefactContent(
        layout=source.layout,
        tokenizer=manifest.tokenizer,
        backbone=manifest.backbone,
        tables={layer: reader(source, layer) for layer in layers},
        modules={layer: source.module_state(layer) for layer in layers},
        dtype=dtype,
        training=_training(manifest),
        extras=source.extras(),
        packed=True,
    )
    write_artefact(folder, content, progress)


def reader(source: Artefact, layer: int) -> RowReader:
    """A layer's table, piece by piece."""
    rows = source.rows(layer)
    return rows if isinstance(rows, PackedFile) else RowsReader(rows)


def _training(manifest: Manifest) -> dict[str, object]:
    """How the memory was made, and that its rows were packed since."""
    made_from = {"storage": manifest.storage, "dtype": manifest.dtype}
    return {**manifest.training, "packed_from": made_from}
