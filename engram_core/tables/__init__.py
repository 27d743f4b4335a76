"""Tables on disk: the native artefact and how rows are encoded, and what others have published."""

from __future__ import annotations

from engram_core.tables.artefact import Artefact
from engram_core.tables.foreign import open_foreign
from engram_core.tables.imported import ImportedMemory
from engram_core.tables.native import open_table
from engram_core.tables.reader import RecordReader, TableReader
from engram_core.tables.rows import DenseRows, SparseRows, TableRows
from engram_core.tables.writer import ArtefactContent, write_artefact

__all__ = [
    "Artefact",
    "ArtefactContent",
    "DenseRows",
    "ImportedMemory",
    "RecordReader",
    "SparseRows",
    "TableReader",
    "TableRows",
    "open_foreign",
    "open_table",
    "write_artefact",
]
