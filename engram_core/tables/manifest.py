"""Manifest: what a native artefact says about itself, in ``manifest.json``.

Reading checks form and internal agreement; whether the files, the tokenizer and the backbone
agree with it is checked by `native`. Knows no tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.layout import HashLayout
from engram_core.tables.encoding import DTYPES, PACKED
from engram_core.tables.json_file import read_json

MANIFEST_NAME = "manifest.json"
FORMAT = "engram-native"
FORMAT_VERSION = 3  # with compressed tables
PACKED_VERSION = 2  # with packed tables
OLDEST_VERSION = 1  # with neither; the oldest that says everything is written
COMPRESSIONS = ("none", "zstd")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenizerRecord:
    """The class map that the rows were trained with."""

    fingerprint: str
    num_ids: int
    compressed_size: int
    pad_class: int

    @classmethod
    def of(cls, compressor: TokenCompressor, config: EngramConfig) -> Self:
        """What an artefact records of a class map, and of the class that fills empty places."""
        return cls(
            fingerprint=compressor.fingerprint,
            num_ids=compressor.num_ids,
            compressed_size=compressor.size,
            pad_class=compressor.class_of(config.pad_id, keep_unmapped=config.keeps_unmapped_ids),
        )


@dataclass(frozen=True, slots=True)
class BackboneRecord:
    """The model that the memory was trained for."""

    name: str
    fingerprint: str
    hidden_size: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the artefact.

    Attributes:
        bytes: its length. sha256: of its bytes; of its chunks' sums where there are chunks.
        chunks: sha256 of every 64 MiB of a packed table; of every frame of a compressed one.
        frame_bytes: of every frame of a compressed table. expanded: the packed table that it
            expands to.
    """

    bytes: int
    sha256: str
    chunks: tuple[str, ...] = ()
    frame_bytes: tuple[int, ...] = ()
    expanded: FileRecord | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what is empty is left out."""
        record: dict[str, Any] = {"bytes": self.bytes, "sha256": self.sha256}
        further = {
            "chunks": list(self.chunks),
            "frame_bytes": list(self.frame_bytes),
            "expanded": self.expanded and self.expanded.to_dict(),
        }
        return record | {name: value for name, value in further.items() if value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote. Raises TypeError for values of another kind."""
        num_bytes, total, chunks = data["bytes"], data["sha256"], data.get("chunks", [])
        if type(num_bytes) is not int or not isinstance(total, str):
            raise TypeError(f"a file is {dict(data)!r}; accepted: bytes, a number, and sha256")
        if not isinstance(chunks, list) or not all(isinstance(chunk, str) for chunk in chunks):
            raise TypeError(f"chunks is {chunks!r}; accepted: a list of checksums")
        frames, expanded = data.get("frame_bytes", []), data.get("expanded")
        if not isinstance(frames, list) or not all(type(n) is int and n > 0 for n in frames):
            raise TypeError(f"frame_bytes is {frames!r}; accepted: a list of bytes")
        whole = None if expanded is None else cls.from_dict(expanded)
        return cls(num_bytes, total, tuple(chunks), tuple(frames), whole)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything an artefact declares.

    Attributes:
        layout: the hash constants, with the configuration in `layout.config`.
        storage: ``"dense"``, ``"sparse"`` or ``"packed"``. dtype: of the stored rows.
        files: size and checksum of every other file, by name.
        training: free record of how the memory was made.
        compression: of packed tables: ``"none"``, or ``"zstd"`` for tables on a journey.
    """

    layout: HashLayout
    tokenizer: TokenizerRecord
    backbone: BackboneRecord
    storage: str
    dtype: str
    files: Mapping[str, FileRecord]
    training: Mapping[str, Any] = field(default_factory=dict)
    compression: str = "none"

    @property
    def is_compressed(self) -> bool:
        """Whether the tables must be expanded before anybody can look rows up."""
        return self.compression != "none"

    @property
    def format_version(self) -> int:
        """The oldest version of the format that can say all of this."""
        if self.is_compressed:
            return FORMAT_VERSION
        return PACKED_VERSION if self.storage == PACKED else OLDEST_VERSION

    def to_json(self) -> str:
        """The text of ``manifest.json``."""
        tables = {"storage": self.storage, "dtype": self.dtype}
        if self.is_compressed:
            tables["compression"] = self.compression
        data = {
            "format": FORMAT,
            "format_version": self.format_version,
            "config": self.layout.config.to_dict(),
            "layout": _layout_record(self.layout),
            "tokenizer": asdict(self.tokenizer),
            "backbone": asdict(self.backbone),
            "tables": tables,
            "files": {name: record.to_dict() for name, record in self.files.items()},
            "training": dict(self.training),
        }
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read and check ``manifest.json``.

        Raises:
            ArtefactError: it is missing, or not what this format says.
            MismatchError: another format or version, or constants that contradict each other.
        """
        data = read_json(folder / MANIFEST_NAME, "an artefact's folder")
        _expect("format", FORMAT, data.get("format"))
        version = data.get("format_version")
        if version not in (OLDEST_VERSION, PACKED_VERSION):
            _expect("format_version", FORMAT_VERSION, version)
        try:
            return cls._parse(data)
        except (KeyError, TypeError, AttributeError, ValueError, ConfigError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ArtefactError(f"{MANIFEST_NAME} is not valid: {reason}") from None

    @classmethod
    def _parse(cls, data: Mapping[str, Any]) -> Self:
        layout = _read_layout(EngramConfig.from_dict(data["config"]), data["layout"])
        tables = data["tables"]
        if tables["dtype"] not in DTYPES.get(tables["storage"], ()):
            raise ConfigError(f"tables is {tables}; accepted: {DTYPES}")
        compression = tables.get("compression", "none")
        if compression not in (COMPRESSIONS if tables["storage"] == PACKED else ("none",)):
            raise ConfigError(f"tables is {tables}; accepted: compression none, or zstd if packed")
        tokenizer = _record(TokenizerRecord, data["tokenizer"])
        _check_class_map(tokenizer, layout)
        return cls(
            layout=layout,
            tokenizer=tokenizer,
            backbone=_record(BackboneRecord, data["backbone"]),
            storage=tables["storage"],
            dtype=tables["dtype"],
            files={name: FileRecord.from_dict(each) for name, each in data["files"].items()},
            training=data["training"],
            compression=compression,
        )


def _check_class_map(tokenizer: TokenizerRecord, layout: HashLayout) -> None:
    """What can be told without the tokenizer; `Artefact.check_tokenizer` compares the map."""
    size = layout.compressed_size
    _expect("compressed_size", size, tokenizer.compressed_size)
    _expect("length of the tokenizer fingerprint", 64, len(tokenizer.fingerprint))
    if tokenizer.num_ids < size:
        _expect("number of token ids", f"at least {size}, one a class", tokenizer.num_ids)
    if tokenizer.pad_class >= size and not layout.config.keeps_unmapped_ids:
        _expect("class of the pad token", f"below {size}", tokenizer.pad_class)


def _layout_record(layout: HashLayout) -> dict[str, Any]:
    return {
        **layout.to_dict(),
        "offsets": {str(layer): list(values) for layer, values in layout.offsets.items()},
        "rows": {str(layer): rows for layer, rows in layout.rows.items()},
    }


def _read_layout(config: EngramConfig, stored: Mapping[str, Any]) -> HashLayout:
    """The stored constants, compared with what the configuration and its seed give."""
    built = _layout_record(HashLayout.build(config, int(stored["compressed_size"])))
    for name in ("multipliers", "primes", "offsets", "rows"):
        for layer in built[name]:
            what = f"{name} of layer {layer} for seed {config.seed}"
            _expect(what, built[name][layer], stored[name].get(layer))
    return HashLayout.from_dict(config, stored)


def _record(cls: type[T], data: Mapping[str, Any]) -> T:
    """A record whose keys and types are exactly the class's."""
    for spec in fields(cls):  # type: ignore[arg-type]
        wanted = int if spec.type in (int, "int") else str
        if type(data[spec.name]) is not wanted:
            raise TypeError(f"{spec.name} is {data[spec.name]!r}; accepted: {wanted.__name__}")
    return cls(**data)


def _expect(what: str, expected: Any, found: Any) -> None:
    if found != expected:
        raise MismatchError(what, expected=expected, found=found, where=MANIFEST_NAME)
