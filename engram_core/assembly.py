"""Assembles a MemoryVersion from an opened artefact: tiers out of rows, modules out of weights.

Knows host memory only; faster or slower tiers wrap these.
"""

from __future__ import annotations

from collections.abc import Callable

from engram_core import compiled
from engram_core.compression import TokenCompressor
from engram_core.errors import MismatchError
from engram_core.hashing import NgramHasher
from engram_core.module import EngramModule
from engram_core.store.base import Tier
from engram_core.store.host import HostTier
from engram_core.store.sparse import SparseTier
from engram_core.tables import Artefact, SparseRows, TableRows
from engram_core.tables.native import MODULE_NAME
from engram_core.version import MemoryVersion


def open_version(
    artefact: Artefact,
    compressor: TokenCompressor,
    *,
    on_last_release: Callable[[], None] | None = None,
) -> MemoryVersion:
    """The memory of an artefact, its tables in host memory.

    Raises:
        MismatchError: the tokenizer's class map is not the artefact's, or a weight's shape is
            not the configuration's.
    """
    artefact.check_tokenizer(compressor)
    compiled.load()  # now, and never within a request
    layers = artefact.config.layer_ids
    return MemoryVersion(
        NgramHasher(artefact.layout, compressor.class_ids),
        compressor.fingerprint,
        {layer: make_tier(artefact.rows(layer)) for layer in layers},
        {layer: make_module(artefact, layer) for layer in layers},
        content=artefact.content,
        on_last_release=on_last_release,
    )


def make_tier(rows: TableRows) -> Tier:
    """The host tier that holds these rows."""
    if isinstance(rows, SparseRows):
        return SparseTier(rows.row_ids, rows.values, rows.num_rows)
    return HostTier(rows.values)


def make_module(artefact: Artefact, layer: int) -> EngramModule:
    """The frozen module of a layer with the artefact's weights."""
    state = artefact.module_state(layer)
    dtype = next(iter(state.values())).dtype if state else None
    module = EngramModule(artefact.config, layer, **({"dtype": dtype} if dtype else {}))
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != found:
        raise MismatchError(
            f"weights of layer {layer}", expected=expected, found=found, where=MODULE_NAME
        )
    module.load_state_dict(state)
    return module.requires_grad_(False).eval()
