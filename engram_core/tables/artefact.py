"""Artefact: an opened memory, whatever folder it came from: constants, tables, weights, and checks.

Knows no files; `native` and `in_place` open them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.errors import ArtefactError, MismatchError
from engram_core.layout import HashLayout
from engram_core.tables.compressed_file import SUFFIX, CompressedFile
from engram_core.tables.float8_reader import Float8Reader
from engram_core.tables.manifest import FileRecord, Manifest
from engram_core.tables.packed_file import PackedFile
from engram_core.tables.rows import TableRows

StoredRows = TableRows | PackedFile | Float8Reader


def table_name(layer: int) -> str:
    """The file of a layer's table."""
    return f"table-layer{layer}.safetensors"


def table_file(manifest: Manifest, layer: int) -> str:
    """The file that holds a layer's table as the manifest says, compressed or not."""
    return table_name(layer) + (SUFFIX if manifest.is_compressed else "")


class Artefact:
    """What an opener read and checked.

    Args:
        name: the folder's name.
        manifest: what it declares, or what its opener found.
        tables: of each Engram layer: rows in memory, or opened files, which are compressed if the
            manifest says so. Empty where somebody else has the rows.
        modules: the weights of each layer's module, named as in `EngramModule.state_dict`.
        extras: further files by name, such as a licence or the facts.
        content: digest (hex) for a memory version's id; its opener says of what.
    """

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        tables: Mapping[int, StoredRows | CompressedFile],
        modules: Mapping[int, Mapping[str, torch.Tensor]],
        *,
        content: str,
        extras: Mapping[str, bytes] | None = None,
    ) -> None:
        self.name, self.manifest, self.content = name, manifest, content
        self._tables, self._modules = dict(tables), dict(modules)
        self._extras = dict(extras or {})

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
        """Whether `compressed` has the tables, and not `rows`."""
        return self.manifest.is_compressed

    def rows(self, layer: int) -> StoredRows:
        """The table of an Engram layer.

        Raises:
            ArtefactError: it is compressed; says how to expand it.
        """
        table = self._tables[layer]
        if isinstance(table, CompressedFile):
            raise ArtefactError(
                f"{self.name} is compressed ({self.manifest.compression}), which is for copies and "
                "not for serving; accepted: what `engram-server table convert "
                f"{self.name} NEW --compress none` makes of it"
            )
        return table

    def compressed(self, layer: int) -> CompressedFile:
        """The compressed table of an Engram layer, read front to back.

        Raises:
            ArtefactError: it is not compressed.
        """
        table = self._tables[layer]
        if not isinstance(table, CompressedFile):
            raise ArtefactError(f"{self.name} is not compressed; accepted: its rows as they are")
        return table

    def table_record(self, layer: int) -> FileRecord:
        """What the manifest says of a layer's table file."""
        return self.manifest.files[table_file(self.manifest, layer)]

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
