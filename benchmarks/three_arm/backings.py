"""Where the tables lie: in DRAM, on an SSD whose pages are cold, or with row servers."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from benchmarks.documents import TokenIds
from benchmarks.row_servers import serve_rows
from benchmarks.three_arm.lookups import Gather, tier_gather
from engram_core.assembly import open_version
from engram_core.compression import TokenCompressor
from engram_core.memory_config import MemoryConfig
from engram_core.tables import Artefact
from engram_core.tables.packed_file import PackedFile
from engram_core.tables.records import PAGE_BYTES
from engram_core.version import MemoryVersion

HALVES = ("0-3", "4-7")  # of the demo's eight heads
_PIECE_ROWS = 1 << 18

MakeGather = Callable[[torch.dtype], Gather]


@dataclass(frozen=True, slots=True)
class Backing:
    """One place of the tables.

    Attributes:
        name: in the table. plain: the memory without any cache, for arms 1 and 2.
        auto: the memory as the server would open it. demo_gather: arm 0's own way to its rows.
        files: whose pages the system may cache; arms meet them cold.
        unmap: lets go of pages of them that are mapped.
    """

    name: str
    plain: MemoryVersion
    auto: MemoryVersion
    demo_gather: MakeGather
    files: tuple[Path, ...] = ()
    unmap: Callable[[], None] = lambda: None


@contextmanager
def open_dram(artefact: Artefact, _folder: Path, compressor: TokenCompressor) -> Iterator[Backing]:
    """Tables in host memory; arm 0's as one tensor in the dtype of compute."""
    plain, auto = _versions(artefact, compressor, MemoryConfig(tier="dram"), MemoryConfig())
    yield Backing("dram", plain, auto, lambda dtype: _tensor_gather(artefact, dtype))


@contextmanager
def open_ssd(artefact: Artefact, _folder: Path, compressor: TokenCompressor) -> Iterator[Backing]:
    """Tables in their files, of which arm 0 maps pages, one fault at a time."""
    told = MemoryConfig(tier="ssd", verify="header")
    plain, auto = _versions(artefact, compressor, told, told)
    packed = packed_tables(artefact)
    tables = {layer: MappedTable(file) for layer, file in packed.items()}
    files = tuple(file.path for file in packed.values())

    def unmap() -> None:
        for table in tables.values():
            table.forget()

    yield Backing("ssd", plain, auto, lambda dtype: _mapped_gather(tables, dtype), files, unmap)


@contextmanager
def open_rows(artefact: Artefact, folder: Path, compressor: TokenCompressor) -> Iterator[Backing]:
    """Tables with two row servers on loopback, half of the heads each."""
    with serve_rows(folder, HALVES) as servers:
        told = MemoryConfig(tier="remote", row_servers=servers)
        plain, auto = _versions(artefact, compressor, told, told)
        yield Backing("remote", plain, auto, lambda dtype: tier_gather(plain.tiers, dtype))


def _versions(
    artefact: Artefact, compressor: TokenCompressor, plain: MemoryConfig, auto: MemoryConfig
) -> tuple[MemoryVersion, MemoryVersion]:
    bare = MemoryConfig.from_dict({**_given(plain), "hot_cache": "off"})
    return open_version(artefact, compressor, bare), open_version(artefact, compressor, auto)


def _given(config: MemoryConfig) -> dict[str, object]:
    names = ("tier", "verify", "row_servers")
    return {name: getattr(config, name) for name in names}


def packed_tables(artefact: Artefact) -> dict[int, PackedFile]:
    """The table of each layer. Raises SystemExit when one is not packed."""
    tables = {layer: artefact.rows(layer) for layer in artefact.config.layer_ids}
    packed = {layer: rows for layer, rows in tables.items() if isinstance(rows, PackedFile)}
    if len(packed) < len(tables):
        raise SystemExit(f"{artefact.name} is not packed; accepted: a new --folder")
    return packed


def _tensor_gather(artefact: Artefact, dtype: torch.dtype) -> Gather:
    tables = {}
    for layer, file in packed_tables(artefact).items():
        table = tables[layer] = torch.empty(file.num_rows, file.row_dim, dtype=dtype)
        for start in range(0, file.num_rows, _PIECE_ROWS):
            stop = min(start + _PIECE_ROWS, file.num_rows)
            table[start:stop] = file.read(start, stop)

    def gather(layer: int, row_ids: TokenIds) -> torch.Tensor:
        return F.embedding(torch.from_numpy(row_ids), tables[layer])

    return gather


class MappedTable:
    """A packed bf16 table as one array over a mapping of its file.

    The system is told that rows are read at random: otherwise every fault would read 32 pages.
    """

    def __init__(self, file: PackedFile) -> None:
        if file.format.dtype != "bfloat16" or PAGE_BYTES % file.format.record_bytes:
            raise SystemExit(f"{file.path.name} is no plain array; accepted: bf16 rows of 64")
        with file.path.open("rb") as opened:
            self._map = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        words = np.frombuffer(self._map, np.int16, offset=file.data_offset)
        self.words = words[: file.num_rows * file.row_dim].reshape(file.num_rows, file.row_dim)

    def forget(self) -> None:
        """Unmap every page; the next touch of each is a fault again."""
        self._map.madvise(mmap.MADV_DONTNEED)


def _mapped_gather(tables: Mapping[int, MappedTable], dtype: torch.dtype) -> Gather:
    def gather(layer: int, row_ids: TokenIds) -> torch.Tensor:
        words = tables[layer].words[row_ids]
        return torch.from_numpy(words).view(torch.bfloat16).to(dtype)

    return gather
