"""Opens this project's own folder of tables and module weights, with every check.

A file is read once: the bytes whose checksum was verified are the bytes that are used, so a file
that is later truncated or overwritten in place cannot reach a running server. Packed tables are not
read here: whoever reads one checks its chunks against `table_record`. Only safetensors
and JSON are read; nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from engram_core.errors import ArtefactError, MismatchError
from engram_core.tables.artefact import Artefact, table_file
from engram_core.tables.compressed_file import SUFFIX, CompressedFile
from engram_core.tables.encoding import PACKED, decode
from engram_core.tables.manifest import MANIFEST_NAME, FileRecord, Manifest
from engram_core.tables.packed_file import CHUNK_BYTES, PackedFile, sum_of_chunks
from engram_core.tables.records import RecordFormat
from engram_core.tables.rows import TableRows

MODULE_NAME = "module.safetensors"


def module_prefix(layer: int) -> str:
    """What stands before a layer's tensor names in the module file."""
    return f"layers.{layer}."


class _Folder:
    """Reads a native artefact's files; every one is verified against the manifest."""

    def __init__(self, folder: Path) -> None:
        self.manifest = Manifest.read(folder)
        self._folder = folder
        self._config = self.manifest.layout.config
        self._check_file_list()

    def open(self, with_tables: bool) -> Artefact:
        """Read everything, the tables only where they are wanted."""
        blobs = {
            name: _verified(self._folder / name, record)
            for name, record in self.manifest.files.items()
            if not record.chunks and (with_tables or name not in self._table_names())
        }
        needed = {MODULE_NAME, *self._table_names()}
        layers = self._config.layer_ids if with_tables else ()
        return Artefact(
            self._folder.name,
            self.manifest,
            {layer: self._read_table(layer, blobs) for layer in layers},
            self._read_modules(blobs[MODULE_NAME]),
            extras={name: blob for name, blob in blobs.items() if name not in needed},
            content=_content(self.manifest.files),  # every byte enters it
        )

    def _check_file_list(self) -> None:
        needed = {MODULE_NAME, *self._table_names()}
        missing = sorted(needed - set(self.manifest.files))
        if missing:
            raise ArtefactError(f"{MANIFEST_NAME} does not list {', '.join(missing)}")
        for name in self.manifest.files:
            if Path(name).name != name:
                raise ArtefactError(f"{MANIFEST_NAME} lists {name!r}; accepted: a plain file name")

    def _table_names(self) -> set[str]:
        return {table_file(self.manifest, layer) for layer in self._config.layer_ids}

    def _open_compressed(self, name: str, layer: int) -> CompressedFile:
        expected = RecordFormat(self.manifest.dtype, self._config.head_dim)
        rows = self.manifest.layout.rows[layer]
        return CompressedFile(self._folder / name, self.manifest.files[name], expected, rows)

    def _read_table(
        self, layer: int, blobs: Mapping[str, bytes]
    ) -> TableRows | PackedFile | CompressedFile:
        name = table_file(self.manifest, layer)
        if self.manifest.is_compressed:
            return self._open_compressed(name, layer)
        if self.manifest.storage == PACKED:
            return self._open_packed(name, layer)
        if name not in blobs:
            raise ArtefactError(f"{name} is summed in chunks; accepted for packed tables only")
        return decode(
            _tensors(name, blobs[name]),
            storage=self.manifest.storage,
            dtype=self.manifest.dtype,
            shape=(self.manifest.layout.rows[layer], self._config.head_dim),
            where=name,
        )

    def _open_packed(self, name: str, layer: int) -> PackedFile:
        record = self.manifest.files[name]
        opened = PackedFile.open(self._folder / name)
        shape = (self.manifest.layout.rows[layer], self._config.head_dim)
        facts = (
            ("table dtype", self.manifest.dtype, opened.format.dtype),
            ("table rows and width", shape, (opened.num_rows, opened.row_dim)),
            ("bytes", record.bytes, opened.file_bytes),
            ("sha256 of the chunks", record.sha256, sum_of_chunks(record.chunks)),
            ("number of chunks", -(-opened.file_bytes // CHUNK_BYTES), len(record.chunks)),
        )
        for what, expected, found in facts:
            if expected != found:
                raise MismatchError(what, expected=expected, found=found, where=opened.path.name)
        return opened

    def _read_modules(self, blob: bytes) -> dict[int, dict[str, torch.Tensor]]:
        states: dict[int, dict[str, torch.Tensor]] = {layer: {} for layer in self._config.layer_ids}
        known = {module_prefix(layer): state for layer, state in states.items()}
        for name, tensor in _tensors(MODULE_NAME, blob).items():
            prefix = name[: name.rfind(".") + 1]
            if prefix not in known:
                raise ArtefactError(f"{MODULE_NAME}: unknown tensor {name!r}")
            known[prefix][name.removeprefix(prefix)] = tensor
        return states


def open_table(path: Path, *, with_tables: bool = True) -> Artefact:
    """Open a native artefact's folder; without its tables where somebody else has the rows.

    Raises:
        ArtefactError: a file is missing or not what the manifest says.
        MismatchError: the same, where two values can be compared; it names the file and both.
    """
    if not path.is_dir():
        raise ArtefactError(f"{path.name} is no folder; accepted: an artefact's folder")
    return _Folder(path).open(with_tables)


def _verified(path: Path, record: FileRecord) -> bytes:
    try:
        blob = path.read_bytes()
    except OSError:
        raise ArtefactError(
            f"{path.name} is listed in {MANIFEST_NAME} but cannot be read"
        ) from None
    if len(blob) != record.bytes:
        raise MismatchError("bytes", expected=record.bytes, found=len(blob), where=path.name)
    found = hashlib.sha256(blob).hexdigest()
    if found != record.sha256:
        raise MismatchError("sha256", expected=record.sha256, found=found, where=path.name)
    return blob


def _tensors(name: str, blob: bytes) -> dict[str, torch.Tensor]:
    try:
        return load(blob)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ArtefactError(f"{name} is no safetensors file: {error}") from None


def _content(files: Mapping[str, FileRecord]) -> str:
    """One sum for all files; compressed ones count as what they expand to."""
    expanded = {
        name.removesuffix(SUFFIX) if record.expanded else name: record.expanded or record
        for name, record in files.items()
    }
    sums = "".join(f"{name} {record.sha256}\n" for name, record in sorted(expanded.items()))
    return hashlib.sha256(sums.encode()).hexdigest()
