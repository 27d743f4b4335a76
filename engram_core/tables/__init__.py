"""Tables on disk: the native artefact, its manifest and how rows are encoded."""

from __future__ import annotations

from engram_core.tables.native import Artefact, open_table
from engram_core.tables.rows import DenseRows, SparseRows, TableRows
from engram_core.tables.writer import ArtefactContent, write_artefact

__all__ = [
    "Artefact",
    "ArtefactContent",
    "DenseRows",
    "SparseRows",
    "TableRows",
    "open_table",
    "write_artefact",
]
