"""The tokenizer of a memory, as an operator names it, held against the memory's class map."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engram_core.compression import TokenCompressor
from engram_core.errors import ConfigError
from engram_core.tables import Artefact, ImportedMemory, open_foreign
from server.default_model import default_cache_dir
from server.loader import CLASS_MAPS, Progress, load_tokenizer, resolve_source
from server.token_file import open_tokenizer


@dataclass(frozen=True, slots=True)
class MemoryTokenizer:
    """A tokenizer and the class map that it gives the memory."""

    tokenizer: Tokenizer
    compressor: TokenCompressor


def open_memory_tokenizer(
    artefact: Artefact, model: str | None, tokenizer: Path | None, progress: Progress
) -> MemoryTokenizer:
    """The named tokenizer, which must give the artefact's class map.

    Args:
        artefact: the memory.
        model: a folder or hub id; None: the default model.
        tokenizer: a ``tokenizer.json`` or its folder; takes the place of the model.
        progress: of obtaining the default model.

    Raises:
        LoadError: the model cannot be obtained. ConfigError: the tokenizer cannot be read.
        MismatchError: its class map is another one; names the fact and both values.
    """
    opened = _named(model, tokenizer, progress)
    compressor = TokenCompressor.from_tokenizer(
        opened,
        artefact.manifest.tokenizer.num_ids,
        _class_maps(),
        fold=artefact.config.folds_tokens,
    )
    artefact.check_tokenizer(compressor)
    return MemoryTokenizer(opened, compressor)


def open_with_tokenizer(
    folder: Path, model: str | None, tokenizer: Path | None, progress: Progress
) -> tuple[ImportedMemory, MemoryTokenizer]:
    """A checkpoint that records no class map, opened with the named tokenizer's.

    Args:
        folder: the checkpoint.
        model: as in `open_memory_tokenizer`.
        tokenizer: as there.
        progress: as there.

    Raises:
        LoadError, ConfigError: as `open_memory_tokenizer`. ArtefactError: see `open_foreign`.
        MismatchError: the tokenizer has not as many ids or classes as the checkpoint declares.
    """
    opened = _named(model, tokenizer, progress)
    memory = open_foreign(folder, tokenizer=opened, cache_dir=_class_maps())
    if memory.compressor is None:
        raise ConfigError(f"{folder.name} has no class map; accepted: a memory that has one")
    return memory, MemoryTokenizer(opened, memory.compressor)


def _named(model: str | None, tokenizer: Path | None, progress: Progress) -> Tokenizer:
    if tokenizer is not None:
        return open_tokenizer(tokenizer)
    source = resolve_source(model, progress)
    source.refuse_remote_code(None)
    opened: Tokenizer = load_tokenizer(source, None).backend_tokenizer
    return opened


def _class_maps() -> Path:
    return default_cache_dir() / CLASS_MAPS
