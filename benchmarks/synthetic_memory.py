"""Writes packed artefacts of any size with pseudo-random rows, for a given model.

Their rows mean nothing, but every one is different and small, so that the model stays sane. Speed
depends on how many rows there are and where they lie, and on nothing that they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.synthetic_rows import SyntheticRows
from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.errors import ArtefactError
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.tables import ArtefactContent, write_artefact
from engram_core.tables.artefact import table_name
from engram_core.tables.manifest import MANIFEST_NAME, BackboneRecord, Manifest, TokenizerRecord

ORDERS = (2, 3)
NUM_HEADS = 8
HEAD_DIM = 64
ROW_BYTES = 2 * HEAD_DIM  # bfloat16
_WEIGHT_SCALE = 0.02


@dataclass(frozen=True, slots=True)
class SyntheticMemory:
    """What an artefact shall be: sizes, and the model that it is for.

    Attributes:
        backbone: the served model's record.
        compressor: token classes of its tokenizer.
        layers: that read the memory.
        bytes_per_layer: of a layer's rows; the hash takes primes, so that there are a few more.
    """

    backbone: BackboneRecord
    compressor: TokenCompressor
    layers: tuple[int, ...]
    bytes_per_layer: int

    @property
    def layout(self) -> HashLayout:
        """Configuration and hash constants: 16 rows per token and layer."""
        rows_per_head = self.bytes_per_layer // (ROW_BYTES * NUM_HEADS * len(ORDERS))
        config = EngramConfig(
            form="v41",
            layer_ids=self.layers,
            orders=ORDERS,
            num_heads=NUM_HEADS,
            rows_per_head=(rows_per_head,) * len(ORDERS),
            head_dim=HEAD_DIM,
            hidden_size=self.backbone.hidden_size,
            norm_eps=1e-6,
            use_bias=False,
        )
        return HashLayout.build(config, self.compressor.size)

    def write(self, folder: Path) -> None:
        """Write it to the new folder. Raises ArtefactError when something is there already."""
        layout = self.layout
        content = ArtefactContent(
            layout=layout,
            tokenizer=TokenizerRecord.of(self.compressor, layout.config),
            backbone=self.backbone,
            tables={
                layer: SyntheticRows(layout.rows[layer], HEAD_DIM, layer) for layer in self.layers
            },
            modules={layer: _module_state(layout.config, layer) for layer in self.layers},
            dtype="bfloat16",
            training={"made": "synthetic rows, for measurements"},
            packed=True,
        )
        write_artefact(folder, content)

    def is_there(self, folder: Path) -> bool:
        """Whether the folder holds this very memory, as far as its manifest tells.

        Raises:
            ArtefactError: it holds something else.
        """
        if not (folder / MANIFEST_NAME).exists():
            return False
        found = Manifest.read(folder)
        if (found.layout, found.backbone, found.dtype) != (self.layout, self.backbone, "bfloat16"):
            raise ArtefactError(
                f"{folder.name} holds another memory; accepted: another folder, or none of that "
                "name"
            )
        return True


def table_files(folder: Path, layers: Sequence[int]) -> list[Path]:
    """The files of an artefact's rows."""
    return [folder / table_name(layer) for layer in layers]


def _module_state(config: EngramConfig, layer: int) -> dict[str, Any]:
    """Weights by which rows change an answer a little and never derail it."""
    module = EngramModule(config, layer).requires_grad_(False)
    generator = torch.Generator().manual_seed(layer)
    module.kv_weight.copy_(torch.randn(module.kv_weight.shape, generator=generator) * _WEIGHT_SCALE)
    return module.state_dict()
