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
from engram_core.collisions import count_collisions
from engram_core.errors import ConfigError
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.store.table_memory import verify
from engram_core.tables import open_table
from engram_core.tables.backbone_record import describe_backbone
from engram_core.tables.convert import pack_artefact, pack_foreign
from engram_core.tables.foreign import open_foreign
from engram_core.tables.native import Artefact
from engram_core.tables.packed_file import PackedFile
from server.artefact_choice import find_artefact, named_artefact
from server.config import Settings
from server.default_model import default_cache_dir
from server.loader import CLASS_MAPS, load
from server.memory_info import describe_artefact
from server.memory_tokenizer import open_memory_tokenizer
from server.phase_share import PhaseShare
from server.progress_lines import ProgressLines
from server.token_stream import TokenStream


def info(given: dict[str, Any]) -> int:
    """Print what an artefact declares and how large it is, and what tokens do to its rows."""
    if given["tokens"] is None:
        _refuse_tokenizer(given)
    artefact = _open(given)
    facts = describe_artefact(artefact)
    facts["files"] = {name: r.bytes for name, r in artefact.manifest.files.items()}
    facts["primes"] = {str(layer): primes for layer, primes in artefact.layout.primes.items()}
    if given["tokens"] is not None:
        facts["tokens"] = _describe_tokens(artefact, given)
    print(json.dumps(facts, indent=2))
    return 0


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
    """Check an artefact; everything but packed tables is checked by opening it."""
    artefact = _open(given)
    told = _told("verify", packed_bytes(artefact))
    for layer in artefact.config.layer_ids:
        rows = artefact.rows(layer)
        if isinstance(rows, PackedFile):
            verify(rows, artefact.table_record(layer), told)
    files = artefact.manifest.files
    total = sum(record.bytes for record in files.values())
    print(f"{artefact.name}: {len(files)} files, {total} bytes, all as the manifest says")
    return 0


def convert(given: dict[str, Any]) -> int:
    """Write a packed artefact, out of a native one or of a memory in another format."""
    folder, dtype = given["folder"], given["dtype"]
    native = find_artefact(given["artefact"], given["engram_dir"])
    path = Path(given["artefact"])
    if native is None and path.exists():
        _convert_foreign(path, given["model"], folder, dtype)
    else:
        artefact = _open(given)
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


def _open(given: dict[str, Any]) -> Artefact:
    return open_table(named_artefact(given["artefact"], given["engram_dir"]))


ACTIONS: Mapping[str, Callable[[dict[str, Any]], int]] = {
    "info": info,
    "verify": check,
    "convert": convert,
}
