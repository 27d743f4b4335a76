"""ImportedMemory: a memory as read from somebody else's format, checked and ready to be converted.

Knows no format; `foreign.open_foreign` makes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.errors import MismatchError
from engram_core.layout import HashLayout
from engram_core.tables.reader import TableReader


@dataclass(frozen=True)
class ImportedMemory:
    """Constants, tables and weights that belong together.

    Attributes:
        source_format: ``"demo"``, ``"deepseek_v41"`` or ``"engram_peft"``.
        layout: configuration and hash constants.
        tables: the rows of each Engram layer, read from the file on demand.
        modules: the weights of each layer, named as in `EngramModule.state_dict`.
        compressor: the class map; None when no tokenizer was given and the format has none.
        num_token_ids: token ids of the class map, when known.
    """

    source_format: str
    layout: HashLayout
    tables: Mapping[int, TableReader]
    modules: Mapping[int, Mapping[str, torch.Tensor]]
    compressor: TokenCompressor | None
    num_token_ids: int | None

    @property
    def config(self) -> EngramConfig:
        """The memory's configuration."""
        return self.layout.config

    @property
    def compressed_size(self) -> int:
        """Number of token classes."""
        return self.layout.compressed_size

    @property
    def pad_class(self) -> int | None:
        """Class of the pad token; None without a class map."""
        keep = self.config.keeps_unmapped_ids
        if self.compressor is None:
            return None
        return self.compressor.class_of(self.config.pad_id, keep_unmapped=keep)


@dataclass(frozen=True, slots=True)
class ClassMaps:
    """Where an importer gets the class map from.

    Attributes:
        tokenizer: a fast tokenizer, a ready map, or None for no tokenizer at hand.
        cache_dir: folder of built maps (see `TokenCompressor.from_tokenizer`).
    """

    tokenizer: Any = None
    cache_dir: Path | None = None

    def build(self, num_ids: int | None, declared_size: int | None) -> TokenCompressor | None:
        """The class map of `num_ids` ids (None: the tokenizer's); None without a tokenizer.

        Raises:
            MismatchError: the map has another length, or another number of classes, than declared.
            ConfigError: the tokenizer is not a fast one.
        """
        if self.tokenizer is None:
            return None
        compressor = self.tokenizer
        if not isinstance(compressor, TokenCompressor):
            compressor = TokenCompressor.from_tokenizer(compressor, num_ids, self.cache_dir)
        if num_ids not in (None, compressor.num_ids):
            raise MismatchError("number of token ids", expected=num_ids, found=compressor.num_ids)
        if declared_size not in (None, compressor.size):
            raise MismatchError(
                "number of token classes", expected=declared_size, found=compressor.size
            )
        return compressor
