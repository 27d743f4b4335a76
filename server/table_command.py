"""`engram-server table info|verify|convert`: artefacts looked at, checked and packed.

Knows the artefacts' folders; loads no model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engram_core.assembly import packed_bytes
from engram_core.layout import HashLayout
from engram_core.store.table_memory import verify
from engram_core.tables import ImportedMemory, open_foreign, open_table
from engram_core.tables.backbone_record import describe_backbone
from engram_core.tables.convert import pack_artefact, pack_foreign
from engram_core.tables.in_place import NO_CHECKSUMS, tables_of
from engram_core.tables.packed_file import PackedFile
from server.artefact_choice import find_artefact, is_native, named_artefact
from server.config import Settings
from server.default_model import default_cache_dir
from server.loader import CLASS_MAPS, load
from server.memory_info import describe_artefact, describe_foreign
from server.phase_share import PhaseShare
from server.progress_lines import ProgressLines


def info(given: dict[str, Any]) -> int:
    """Print what an artefact declares and how large it is."""
    folder = _named(given)
    if is_native(folder):
        artefact = open_table(folder)
        facts, layout = describe_artefact(artefact), artefact.layout
        facts["files"] = {name: r.bytes for name, r in artefact.manifest.files.items()}
    else:
        memory = open_foreign(folder)
        facts, layout = describe_foreign(folder.name, memory), memory.layout
        facts["files"] = _table_files(memory, folder.name)
    facts["primes"] = {str(layer): primes for layer, primes in layout.primes.items()}
    print(json.dumps(facts, indent=2))
    return 0


def check(given: dict[str, Any]) -> int:
    """Check an artefact; everything but packed tables is checked by opening it."""
    folder = _named(given)
    if not is_native(folder):
        files = _table_files(open_foreign(folder), folder.name)
        named = ", ".join(f"{name} ({size} bytes)" for name, size in files.items())
        print(f"{folder.name}: tables in {named}; {NO_CHECKSUMS}")
        return 0
    artefact = open_table(folder)
    told = _told("verify", packed_bytes(artefact))
    for layer in artefact.config.layer_ids:
        rows = artefact.rows(layer)
        if isinstance(rows, PackedFile):
            verify(rows, artefact.table_record(layer), told)
    records = artefact.manifest.files
    total = sum(record.bytes for record in records.values())
    print(f"{artefact.name}: {len(records)} files, {total} bytes, all as the manifest says")
    return 0


def convert(given: dict[str, Any]) -> int:
    """Write a packed artefact, out of a native one or of a memory in another format."""
    folder, dtype = given["folder"], given["dtype"]
    found = find_artefact(given["artefact"], given["engram_dir"])
    path = found or Path(given["artefact"])
    if path.exists() and not is_native(path):
        _convert_foreign(path, given["model"], folder, dtype)
    else:
        artefact = open_table(_named(given))
        pack_artefact(
            artefact,
            folder,
            dtype,
            _told("convert", _num_rows(artefact.layout)),
        )
    print(folder)
    return 0


def _convert_foreign(path: Path, model: str | None, folder: Path, dtype: str) -> None:
    loaded = load(Settings(model=model, engram="none"))
    maps = default_cache_dir() / CLASS_MAPS
    memory = open_foreign(path, tokenizer=loaded.tokenizer, cache_dir=maps)
    backbone = describe_backbone(loaded.model, loaded.name)
    told = _told("convert", _num_rows(memory.layout))
    pack_foreign(memory, backbone, folder, dtype, told)


def _told(phase: str, total: int) -> PhaseShare:
    return PhaseShare(ProgressLines(sys.stderr), phase, total)


def _num_rows(layout: HashLayout) -> int:
    return sum(layout.rows.values())


def _named(given: dict[str, Any]) -> Path:
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
