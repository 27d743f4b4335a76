"""Artefact: this project's own folder of tables and module weights, opened with every check.

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

from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.errors import ArtefactError, MismatchError
from engram_core.layout import HashLayout
from engram_core.tables.compressed_file import SUFFIX, CompressedFile
from engram_core.tables.encoding import PACKED, decode
from engram_core.tables.manifest import MANIFEST_NAME, FileRecord, Manifest
from engram_core.tables.packed_file import CHUNK_BYTES, PackedFile, sum_of_chunks
from engram_core.tables.records import RecordFormat
from engram_core.tables.rows import TableRows

MODULE_NAME = "module.safetensors"


def table_name(layer: int) -> str:
    """The file of a layer's table."""
    return f"table-layer{layer}.safetensors"


def module_prefix(layer: int) -> str:
    """What stands before a layer's tensor names in the module file."""
    return f"layers.{layer}."


class Artefact:
    """An opened artefact; every file was verified against the manifest.

    Attributes:
        name: the folder's name. manifest: what it declares.
        content: sha256 (hex) over the files' checksums, for a memory version's id.
    """

    def __init__(self, folder: Path, *, with_tables: bool = True) -> None:
        self.name = folder.name
        self.manifest = Manifest.read(folder)
        self._check_file_list()
        self._folder = folder
        blobs = {
            name: _verified(folder / name, record)
            for name, record in self.manifest.files.items()
            if not record.chunks and (with_tables or name not in self._table_names())
        }
        layers = self.config.layer_ids if with_tables else ()
        packed = layers if self.manifest.storage == PACKED else ()
        self._compressed = (
            {layer: self._open_compressed(layer) for layer in packed} if self.is_compressed else {}
        )
        self._tables = {
            layer: self._read_table(layer, blobs) for layer in layers if not self._compressed
        }
        self._modules = self._read_modules(blobs[MODULE_NAME])
        needed = {MODULE_NAME, *self._table_names()}
        self._extras = {name: blob for name, blob in blobs.items() if name not in needed}
        self.content = _content(self.manifest.files)

    @property
    def config(self) -> EngramConfig:
        """The memory's configuration."""
        return self.manifest.layout.config

    @property
    def layout(self) -> HashLayout:
        """The memory's hash constants."""
        return self.manifest.layout

    @property
    def is_compressed(self) -> bool:
        """Whether the tables must be expanded before anybody can look rows up."""
        return self.manifest.compression != "none"

    def rows(self, layer: int) -> TableRows | PackedFile:
        """The table of an Engram layer.

        Raises:
            ArtefactError: it is compressed; says how to expand it.
        """
        if self._compressed:
            raise ArtefactError(
                f"{self.name} is compressed ({self.manifest.compression}), which is for copies and "
                "not for serving; accepted: what `engram-server table convert "
                f"{self.name} NEW --compress none` makes of it"
            )
        return self._tables[layer]

    def compressed(self, layer: int) -> CompressedFile:
        """The compressed table of a layer; only where `is_compressed`."""
        return self._compressed[layer]

    def table_record(self, layer: int) -> FileRecord:
        """What the manifest says of a layer's table file."""
        return self.manifest.files[self._table_file(layer)]

    def module_state(self, layer: int) -> Mapping[str, torch.Tensor]:
        """The weights of a layer's module, by the names of `EngramModule.state_dict`."""
        return self._modules[layer]

    def extras(self) -> Mapping[str, bytes]:
        """Further files by name, such as a licence or the facts."""
        return self._extras

    def check_tokenizer(self, compressor: TokenCompressor) -> None:
        """Refuse a tokenizer whose class map is not the one the rows were trained with.

        Raises:
            MismatchError: names the fact and both values.
        """
        record = self.manifest.tokenizer
        self._expect("number of token ids", record.num_ids, compressor.num_ids)
        self._expect("number of token classes", record.compressed_size, compressor.size)
        self._expect("tokenizer fingerprint", record.fingerprint, compressor.fingerprint)
        keep = self.config.keeps_unmapped_ids
        pad_class = compressor.class_of(self.config.pad_id, keep_unmapped=keep)
        self._expect("class of the pad token", record.pad_class, pad_class)

    def check_backbone(self, fingerprint: str, hidden_size: int, num_layers: int) -> None:
        """Refuse another backbone than the one the memory was trained for.

        Raises:
            MismatchError: names the fact and both values.
        """
        record = self.manifest.backbone
        self._expect("hidden size of the backbone", record.hidden_size, hidden_size)
        self._expect("number of decoder layers", record.num_layers, num_layers)
        self._expect("backbone fingerprint", record.fingerprint, fingerprint)

    def _expect(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            raise MismatchError(what, expected=expected, found=found, where=self.name)

    def _check_file_list(self) -> None:
        needed = {MODULE_NAME, *self._table_names()}
        missing = sorted(needed - set(self.manifest.files))
        if missing:
            raise ArtefactError(f"{MANIFEST_NAME} does not list {', '.join(missing)}")
        for name in self.manifest.files:
            if Path(name).name != name:
                raise ArtefactError(f"{MANIFEST_NAME} lists {name!r}; accepted: a plain file name")

    def _table_names(self) -> set[str]:
        return {self._table_file(layer) for layer in self.config.layer_ids}

    def _table_file(self, layer: int) -> str:
        return table_name(layer) + (SUFFIX if self.is_compressed else "")

    def _open_compressed(self, layer: int) -> CompressedFile:
        expected = RecordFormat(self.manifest.dtype, self.config.head_dim)
        path = self._folder / self._table_file(layer)
        return CompressedFile(path, self.table_record(layer), expected, self.layout.rows[layer])

    def _read_table(self, layer: int, blobs: Mapping[str, bytes]) -> TableRows | PackedFile:
        name = table_name(layer)
        if self.manifest.storage == PACKED:
            return self._open_packed(layer)
        if name not in blobs:
            raise ArtefactError(f"{name} is summed in chunks; accepted for packed tables only")
        return decode(
            _tensors(name, blobs[name]),
            storage=self.manifest.storage,
            dtype=self.manifest.dtype,
            shape=(self.layout.rows[layer], self.config.head_dim),
            where=name,
        )

    def _open_packed(self, layer: int) -> PackedFile:
        record = self.table_record(layer)
        opened = PackedFile.open(self._folder / table_name(layer))
        shape = (self.layout.rows[layer], self.config.head_dim)
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
        states: dict[int, dict[str, torch.Tensor]] = {layer: {} for layer in self.config.layer_ids}
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
    return Artefact(path, with_tables=with_tables)


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
