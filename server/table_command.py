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
from engram_core.tables import Artefact, ImportedMemory, RecordReader, open_foreign, open_table
from engram_core.tables.backbone_record import describe_backbone
from engram_core.tables.convert import pack_artefact, pack_foreign
from engram_core.tables.encoding import PACKED
from engram_core.tables.in_place import NO_CHECKSUMS, tables_of
from engram_core.tables.packed_file import PackedFile
from engram_core.tables.spans import check_spans
from server.artefact_choice import find_artefact, is_native, named_artefact
from server.config import Settings
from server.default_model import default_cache_dir
from server.loader import CLASS_MAPS, load
from server.memory_info import describe_artefact, describe_foreign
from server.memory_tokenizer import MemoryTokenizer, open_memory_tokenizer, open_with_tokenizer
from server.phase_share import PhaseShare
from server.progress_lines import ProgressLines
from server.token_stream import TokenStream

_DEFAULT_DTYPE = "int8"


def info(given: dict[str, Any]) -> int:
    """Print what an artefact declares and how large it is, and what tokens do to its rows."""
    folder = _named(given)
    facts = _describe_native(folder, given) if is_native(folder) else _describe_v41(folder, given)
    print(json.dumps(facts, indent=2))
    return 0


def _describe_native(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    if given["tokens"] is None:
        _refuse_tokenizer(given)
    artefact = open_table(folder)
    facts = describe_artefact(artefact)
    facts["files"] = {name: r.bytes for name, r in artefact.manifest.files.items()}
    facts["primes"] = _primes(artefact.layout)
    if artefact.is_compressed:
        facts["compression"] = _describe_compression(artefact)
    if given["tokens"] is not None:
        told = ProgressLines(sys.stderr)
        made_with = open_memory_tokenizer(artefact, given["model"], given["tokenizer"], told)
        facts["tokens"] = _describe_tokens(artefact.layout, made_with, given["tokens"])
    return facts


def _describe_v41(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    memory, made_with = _open_v41(folder, given, needs_tokenizer=given["tokens"] is not None)
    facts = describe_foreign(folder.name, memory)
    facts["files"] = _table_files(memory, folder.name)
    facts["primes"] = _primes(memory.layout)
    if made_with is not None and given["tokens"] is not None:
        facts["tokens"] = _describe_tokens(memory.layout, made_with, given["tokens"])
    return facts


def _open_v41(
    folder: Path, given: Mapping[str, Any], *, needs_tokenizer: bool = False
) -> tuple[ImportedMemory, MemoryTokenizer | None]:
    """A checkpoint, with the tokenizer if one is needed or named."""
    if not needs_tokenizer and not _names_tokenizer(given):
        return open_foreign(folder), None
    told = ProgressLines(sys.stderr)
    return open_with_tokenizer(folder, given["model"], given["tokenizer"], told)


def _primes(layout: HashLayout) -> dict[str, Any]:
    return {str(layer): primes for layer, primes in layout.primes.items()}


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


def _names_tokenizer(given: Mapping[str, Any]) -> bool:
    return given["model"] is not None or given["tokenizer"] is not None


def _describe_tokens(layout: HashLayout, made_with: MemoryTokenizer, file: Path) -> dict[str, Any]:
    """How the n-grams of a file fill the rows; `engram_core.collisions` defines the numbers."""
    hasher = NgramHasher(layout, made_with.compressor.class_ids)
    with TokenStream(file, made_with.tokenizer) as tokens:
        loads = [load.to_dict() for load in count_collisions(hasher, tokens)]
        return {"file": file.name, "tokens": len(tokens), "loads": loads}


def check(given: dict[str, Any]) -> int:
    """Check an artefact: spans, checksums, constants, weights, and the tokenizer if one is named.

    What a packed table says of itself is checked by opening it, its bytes here. A checkpoint that
    is read in place is checked by opening it.
    """
    folder = _named(given)
    print(_check_native(folder, given) if is_native(folder) else _check_v41(folder, given))
    return 0


def _check_native(folder: Path, given: Mapping[str, Any]) -> str:
    check_spans(folder)
    artefact = open_table(folder)
    _verify_tables(artefact)
    for layer in artefact.config.layer_ids:
        make_module(artefact, layer)
    compared = ""
    if _names_tokenizer(given):
        told = ProgressLines(sys.stderr)
        open_memory_tokenizer(artefact, given["model"], given["tokenizer"], told)
        compared = "; the tokenizer gives its class map"
    files = artefact.manifest.files
    total = sum(record.bytes for record in files.values())
    return f"{artefact.name}: {len(files)} files, {total} bytes, all as the manifest says{compared}"


def _check_v41(folder: Path, given: Mapping[str, Any]) -> str:
    memory, made_with = _open_v41(folder, given)
    files = _table_files(memory, folder.name)
    named = ", ".join(f"{name} ({size} bytes)" for name, size in files.items())
    classes = f"; the tokenizer gives its {memory.compressed_size} token classes"
    return f"{folder.name}: tables in {named}; {NO_CHECKSUMS}{classes if made_with else ''}"


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
    found = find_artefact(given["artefact"], given["engram_dir"])
    path = found or Path(given["artefact"])
    if path.exists() and not is_native(path):
        _convert_foreign(path, given, compression)
    else:
        artefact = open_table(_named(given))
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
    dtype = _foreign_dtype(memory, given)
    pack_foreign(memory, backbone, given["folder"], dtype, told, compression)


def _foreign_dtype(memory: ImportedMemory, given: Mapping[str, Any]) -> str:
    """The named one; rows that are records already keep theirs when they are only compressed."""
    own = {table.dtype for table in memory.tables.values() if isinstance(table, RecordReader)}
    kept = own if given["compress"] is not None else set()
    return given["dtype"] or next(iter(kept), _DEFAULT_DTYPE)


def _told(phase: str, total: int) -> PhaseShare:
    return PhaseShare(ProgressLines(sys.stderr), phase, total)


def _num_rows(layout: HashLayout) -> int:
    return sum(layout.rows.values())


def _named(given: Mapping[str, Any]) -> Path:
    return named_artefact(given["artefact"], given["engram_dir"])


def _table_files(memory: ImportedMemory, name: str) -> dict[str, int]:
    """Bytes of the files that hold tables, by their names."""
    parts = [part for table in tables_of(memory, name).values() for part in table.parts]
    return {part.path.name: part.file_bytes for part in parts}


ACTIONS: Mapping[str, Callable[[dict[str, Any]], int]] = {
    "info": info,
    "verify": check,
    "convert": convert,
}
