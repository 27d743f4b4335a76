"""The tokenizer of a memory, as an operator names it, held against the memory's class map."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engram_core.compression import TokenCompressor
from engram_core.tables import Artefact
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
    if tokenizer is not None:
        opened = open_tokenizer(tokenizer)
    else:
        source = resolve_source(model, progress)
        source.refuse_remote_code(None)
        opened = load_tokenizer(source, None).backend_tokenizer
    compressor = TokenCompressor.from_tokenizer(
        opened,
        artefact.manifest.tokenizer.num_ids,
        default_cache_dir() / CLASS_MAPS,
        fold=artefact.config.folds_tokens,
    )
    artefact.check_tokenizer(compressor)
    return MemoryTokenizer(opened, compressor)
