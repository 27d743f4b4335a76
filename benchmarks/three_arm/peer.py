"""EngramDB (PyPI `engramdb-python`), a store made for such tables, over the same rows.

Measured beside the arms and not depended on: `pip install 'engram-server[bench]'`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.documents import TokenIds
from benchmarks.three_arm.lookups import Gather
from engram_core.tables.packed_file import PackedFile

_COPY_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class Peer:
    """Its stores.

    Attributes:
        name: with its release. files: the stores' files.
        stores: by layer.
    """

    name: str
    files: tuple[Path, ...]
    stores: Mapping[int, Any]

    def gather(self, dtype: torch.dtype) -> Gather:
        """Rows of the stores, in `dtype`."""

        def gather(layer: int, row_ids: TokenIds) -> torch.Tensor:
            found = bytearray(self.stores[layer].fetch(row_ids.tolist()))
            return torch.frombuffer(found, dtype=torch.bfloat16).view(len(row_ids), -1).to(dtype)

        return gather


def open_peer(tables: Mapping[int, PackedFile], folder: Path) -> Peer | None:
    """Stores in `folder` with the rows of packed bf16 tables; None where it is not installed."""
    if importlib.util.find_spec("engramdb") is None:
        return None
    library: Any = importlib.import_module("engramdb")
    files, stores = [], {}
    for layer, table in tables.items():
        shard = folder / f"layer{layer}" / "shard_000.bin"
        _write(table, shard)
        files.append(shard)
        width = table.format.record_bytes
        stores[layer] = library.Store(
            str(shard.parent), shards=1, rows_per_shard=table.num_rows, width=width
        )
    name = f"engramdb {importlib.metadata.version('engramdb-python')}"
    return Peer(name, tuple(files), stores)


def _write(table: PackedFile, shard: Path) -> None:
    """The records of a packed table without its header: rows of bf16 leave no gaps in pages."""
    num_bytes = table.num_rows * table.format.record_bytes
    if shard.exists() and shard.stat().st_size == num_bytes:
        return
    print(f"writing {num_bytes / 1e9:.2f} GB for engramdb", file=sys.stderr, flush=True)
    shard.parent.mkdir(parents=True, exist_ok=True)
    with table.path.open("rb") as source, shard.open("wb") as target:
        source.seek(table.data_offset)
        shutil.copyfileobj(source, target, _COPY_BYTES)
        target.truncate(num_bytes)


def check(peer: Peer, tables: Mapping[int, PackedFile]) -> None:
    """Raises RuntimeError when a store's rows are not the table's."""
    for layer, table in tables.items():
        row_ids = np.linspace(0, table.num_rows - 1, 64).astype(np.int64)
        rows = peer.gather(torch.bfloat16)(layer, row_ids)
        expected = torch.cat([table.read(int(row), int(row) + 1) for row in row_ids])
        if not torch.equal(rows.view(torch.int16), expected.view(torch.int16)):
            raise RuntimeError(f"{peer.name} gives other rows for layer {layer}")
