"""Turns a trained memory into the content of an artefact, in the memory rule it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engram_core.retrofit.row_parameters import RowParameters
from engram_core.retrofit.trainer import TrainedMemory
from engram_core.tables import ArtefactContent, SparseRows
from engram_core.tables.backbone_record import describe_backbone
from engram_core.tables.manifest import TokenizerRecord

MARK = 2.0**-10  # a trained row's values are about 0.3


def make_content(
    memory: TrainedMemory,
    model: Any,
    *,
    model_name: str,
    dtype: str = "int4",
    training: Mapping[str, Any] | None = None,
    extras: Mapping[str, bytes] | None = None,
) -> ArtefactContent:
    """The content of an artefact with sparse tables.

    Args:
        memory: what the trainer returned.
        model: the backbone it was trained on; names the artefact's backbone.
        model_name: what people call the backbone.
        dtype: of the stored rows, ``"int4"`` or ``"bfloat16"``.
        training: record of how the memory was made; the recipe is added to it.
        extras: further files by name.
    """
    layout = memory.hasher.layout
    return ArtefactContent(
        layout=layout,
        tokenizer=TokenizerRecord.of(memory.compressor, layout.config),
        backbone=describe_backbone(model, model_name),
        tables={
            layer: sparse_rows(rows, layout.rows[layer]) for layer, rows in memory.rows.items()
        },
        modules={layer: module.state_dict() for layer, module in memory.modules.items()},
        dtype=dtype,
        training={**(training or {}), "recipe": memory.recipe.to_dict()},
        extras=extras or {},
    )


def sparse_rows(rows: RowParameters, num_rows: int) -> SparseRows:
    """Every row that a trained position reads, none of them zero.

    A row stays zero where its token was confident from the start, thanks to a shorter n-gram that
    other facts wrote. The hit rule would take that for an unknown n-gram and silence the position,
    so such a row gets a mark too small to matter.
    """
    values = rows.values.clone()
    values[(values == 0).all(dim=1), 0] = MARK
    return SparseRows(rows.row_ids, values, num_rows)
