"""`engram-server table info|verify|convert`: artefacts looked at, checked and packed.

Knows the artefacts' folders; loads no model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engram_core.assembly import make_module, packed_bytes
from engram_core.collisions import count_collisions
from engram_core.errors import ConfigError
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.store.table_memory import verify
from engram_core.tables import open_table
from engram_core.tables.backbone_record import describe_backbone
from engram_core.tables.convert import pack_artefact, pack_foreign
from engram_core.tables.encoding import PACKED
from engram_core.tables.foreign import open_foreign
from engram_core.tables.native import Artefact
from engram_core.tables.packed_file import PackedFile
from engram_core.tables.spans import check_spans
from server.artefact_choice import find_artefact, named_artefact
from server.config import Settings
from server.default_model import default_cache_dir
from server.loader import CLASS_MAPS, load
from server.memory_info import describe_artefact
from server.memory_tokenizer import open_memory_tokenizer
from server.phase_share import PhaseShare
from server.progress_lines import ProgressLines
from server.token_stream import TokenStream

_DEFAULT_DTYPE = "int8"


def info(given: dict[str, Any]) -> int:
    """Print what an artefact declares and how large it is, and what tokens do to its rows."""
    if given["tokens"] is None:
        _refuse_tokenizer(given)
    artefact = _open(given)
    facts = describe_artefact(artefact)
    facts["files"] = {name: r.bytes for name, r in artefact.manifest.files.items()}
    facts["primes"] = {str(layer): primes for layer, primes in artefact.layout.primes.items()}
    if artefact.is_compressed:
        facts["compression"] = _describe_compression(artefact)
    if given["tokens"] is not None:
        facts["tokens"] = _describe_tokens(artefact, given)
    print(json.dumps(facts, indent=2))
    return 0


def _describe_compression(artefact: Artefact) -> dict[str, Any]:
    """The tables' bytes together, and how many they were before."""
    tables = [artefact.compressed(layer) for layer in artefact.config.layer_ids]
    stored = sum(table.record.bytes for table in tables)
    expanded = sum(table.expanded_bytes for table in tables)
    return {
        "codec": artefact.manifest.compression,
        "bytes": stored,
        "expanded_bytes": expanded,
        "ratio": round(expanded / stored, 4),
    }


def _refuse_tokenizer(given: Mapping[str, Any]) -> None:
    for name in ("model", "tokenizer"):
        if given[name] is not None:
            raise ConfigError(f"{name} is {Path(given[name]).name!r}; accepted: only with --tokens")


def _describe_tokens(artefact: Artefact, given: Mapping[str, Any]) -> dict[str, Any]:
    """How the n-grams of a file fill the rows; `engram_core.collisions` defines the numbers."""
    told = ProgressLines(sys.stderr)
    made_with = open_memory_tokenizer(artefact, given["model"], given["tokenizer"], told)
    hasher = NgramHasher(artefact.layout, made_with.compressor.class_ids)
    with TokenStream(given["tokens"], made_with.tokenizer) as tokens:
        loads = [load.to_dict() for load in count_collisions(hasher, tokens)]
        return {"file": given["tokens"].name, "tokens": len(tokens), "loads": loads}


def check(given: dict[str, Any]) -> int:
    """Check an artefact: spans, checksums, constants, weights, and the tokenizer if one is named.

    What a packed table says of itself is checked by opening it, its bytes here.
    """
    folder = named_artefact(given["artefact"], given["engram_dir"])
    check_spans(folder)
    artefact = open_table(folder)
    _verify_tables(artefact)
    for layer in artefact.config.layer_ids:
        make_module(artefact, layer)
    compared = ""
    if given["model"] is not None or given["tokenizer"] is not None:
        told = ProgressLines(sys.stderr)
        open_memory_tokenizer(artefact, given["model"], given["tokenizer"], told)
        compared = "; the tokenizer gives its class map"
    files = artefact.manifest.files
    total = sum(record.bytes for record in files.values())
    print(f"{artefact.name}: {len(files)} files, {total} bytes, all as the manifest says{compared}")
    return 0


def _verify_tables(artefact: Artefact) -> None:
    layers = artefact.config.layer_ids
    if artefact.is_compressed:
        tables = [artefact.compressed(layer) for layer in layers]
        told = _told("verify", sum(table.expanded_bytes for table in tables))
        for table in tables:
            table.verify(told)
        return
    told = _told("verify", packed_bytes(artefact))
    for layer in layers:
        rows = artefact.rows(layer)
        if isinstance(rows, PackedFile):
            verify(rows, artefact.table_record(layer), told)


def convert(given: dict[str, Any]) -> int:
    """Write a packed artefact, out of a native one or of a memory in another format."""
    folder, compression = given["folder"], given["compress"] or "none"
    native = find_artefact(given["artefact"], given["engram_dir"])
    path = Path(given["artefact"])
    if native is None and path.exists():
        _convert_foreign(path, given, compression)
    else:
        artefact = _open(given)
        told = _told("convert", _num_rows(artefact.layout))
        pack_artefact(artefact, folder, _packed_dtype(artefact, given), told, compression)
    if compression != "none":
        _say_ratio(open_table(folder))
    print(folder)
    return 0


def _packed_dtype(artefact: Artefact, given: Mapping[str, Any]) -> str:
    """The named one; rows that are only compressed or expanded keep theirs."""
    manifest = artefact.manifest
    is_kept = artefact.is_compressed or given["compress"] is not None
    kept = manifest.dtype if manifest.storage == PACKED and is_kept else _DEFAULT_DTYPE
    return given["dtype"] or kept


def _say_ratio(artefact: Artefact) -> None:
    facts = _describe_compression(artefact)
    print(
        f"{facts['codec']}: {facts['expanded_bytes']} bytes of tables became {facts['bytes']} "
        f"(ratio {facts['ratio']:.3f})",
        file=sys.stderr,
    )


def _convert_foreign(path: Path, given: Mapping[str, Any], compression: str) -> None:
    loaded = load(Settings(model=given["model"], engram="none"))
    maps = default_cache_dir() / CLASS_MAPS
    memory = open_foreign(path, tokenizer=loaded.tokenizer, cache_dir=maps)
    backbone = describe_backbone(loaded.model, loaded.name)
    told = _told("convert", _num_rows(memory.layout))
    dtype = given["dtype"] or _DEFAULT_DTYPE
    pack_foreign(memory, backbone, given["folder"], dtype, told, compression)


def _told(phase: str, total: int) -> PhaseShare:
    return PhaseShare(ProgressLines(sys.stderr), phase, total)


def _num_rows(layout: HashLayout) -> int:
    return sum(layout.rows.values())


def _open(given: dict[str, Any]) -> Artefact:
    return open_table(named_artefact(given["artefact"], given["engram_dir"]))


ACTIONS: Mapping[str, Callable[[dict[str, Any]], int]] = {
    "info": info,
    "verify": check,
    "convert": convert,
}
