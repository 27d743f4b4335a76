"""TokenCompressor: token ids -> classes of tokens that read the same.

Upper and lower case, accents, width variants and leading spaces fold together, so that one n-gram
row serves all spellings. The rules are the public demo's CompressedTokenizer, restated in
`_normalizer`. Text is never re-tokenised here: the only input is the vocabulary.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, normalizers

from engram_core.errors import ConfigError, IdRangeError

CACHE_FORMAT = "1"  # raise when the rules below change: old cache files are then ignored
REPLACEMENT = "\ufffd"
LONE_SPACE = "\ue000"  # private use: keeps a token that is exactly one space from vanishing

ClassIds = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenCompressor:
    """The class of every token id.

    Attributes:
        class_ids: int64 ``[num_ids]``; classes are numbered by first appearance.
    """

    class_ids: ClassIds

    @property
    def num_ids(self) -> int:
        """How many token ids have a class."""
        return len(self.class_ids)

    @cached_property
    def size(self) -> int:
        """C: the number of classes."""
        return int(self.class_ids.max()) + 1

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of the map as little-endian int64."""
        return hashlib.sha256(self.class_ids.astype("<i8").tobytes()).hexdigest()

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        num_ids: int | None = None,
        cache_dir: Path | None = None,
        *,
        fold: bool = True,
    ) -> Self:
        """Build the map of a tokenizer (engram-spec section 1), or read it from `cache_dir`.

        Args:
            tokenizer: a fast Hugging Face tokenizer or a `tokenizers.Tokenizer`.
            num_ids: length of the map; ids beyond the tokenizer become one new class each, a
                smaller number cuts. Default: the tokenizer's length, added tokens included.
            cache_dir: folder of built maps, keyed by the tokenizer's sha256.
            fold: False makes every id a class of its own (`EngramConfig.folds_tokens`).

        Raises:
            ConfigError: the tokenizer is not a fast one, or `num_ids` is below 1.
        """
        backend = _backend(tokenizer)
        if num_ids is not None and num_ids < 1:
            raise ConfigError(f"num_ids is {num_ids}; accepted: a number >= 1")
        if not fold:
            return cls.unfolded(_length(backend) if num_ids is None else num_ids)
        path = None if cache_dir is None else cache_dir / f"{_cache_key(backend)}.npy"
        base = _read(path) if path and path.exists() else None
        if base is None:
            base = _fold(backend)
            if path:
                _write(path, base)
        return cls(_resize(base, num_ids))

    @classmethod
    def unfolded(cls, num_ids: int) -> Self:
        """The map in which every id is a class of its own."""
        return cls(np.arange(num_ids, dtype=np.int64))

    def class_of(self, token_id: int, *, keep_unmapped: bool = False) -> int:
        """The class of one id; `keep_unmapped` as in `EngramConfig.keeps_unmapped_ids`.

        Raises:
            IdRangeError: the id has no class.
        """
        return int(compress(self.class_ids, [token_id], keep_unmapped=keep_unmapped)[0])

    def compress(self, token_ids: npt.ArrayLike) -> ClassIds:
        """Classes of `token_ids` (any shape). Negative ids pass unchanged, as in the demo.

        Raises:
            IdRangeError: an id is `num_ids` or more.
        """
        return compress(self.class_ids, token_ids)


def compress(
    class_ids: ClassIds, token_ids: npt.ArrayLike, *, keep_unmapped: bool = False
) -> ClassIds:
    """See `TokenCompressor.compress`; with `keep_unmapped` ids beyond the map pass unchanged."""
    ids = np.asarray(token_ids, dtype=np.int64)
    if not ids.size or int(ids.view(np.uint64).max()) < len(class_ids):
        return class_ids[ids]  # the usual case: as unsigned numbers negative ids are huge
    if keep_unmapped:
        is_mapped = (ids >= 0) & (ids < len(class_ids))
        return np.where(is_mapped, class_ids[np.where(is_mapped, ids, 0)], ids)
    if int(ids.max()) >= len(class_ids):
        raise IdRangeError(
            f"token id {int(ids.max())} is out of range; accepted: below {len(class_ids)}"
        )
    return np.where(ids < 0, ids, class_ids[np.maximum(ids, 0)])


def _backend(tokenizer: Any) -> Tokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer):
        raise ConfigError(
            f"the tokenizer is a {type(tokenizer).__name__}; accepted: a fast tokenizer "
            "(one backed by the tokenizers library)"
        )
    return backend


def vocabulary_size(tokenizer: Any) -> int:
    """Ids of a tokenizer without added tokens, which transformers calls ``vocab_size``.

    Raises:
        ConfigError: the tokenizer is not a fast one.
    """
    return int(_backend(tokenizer).get_vocab_size(with_added_tokens=False))


def _length(backend: Tokenizer) -> int:
    return int(backend.get_vocab_size(with_added_tokens=True))


def _cache_key(backend: Tokenizer) -> str:
    return hashlib.sha256(f"{CACHE_FORMAT}\n{backend.to_str()}".encode()).hexdigest()


def _normalizer() -> Any:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(LONE_SPACE, " "),
        ]
    )


def _keys(backend: Tokenizer) -> Iterable[str]:
    normalizer = _normalizer()
    ids = range(_length(backend))
    texts = backend.decode_batch([[i] for i in ids], skip_special_tokens=False)
    for token_id, text in zip(ids, texts, strict=True):
        if REPLACEMENT in text:  # a piece of a character: only its raw spelling tells it apart
            yield backend.id_to_token(token_id) or text
        else:
            yield normalizer.normalize_str(text) or text


def _fold(backend: Tokenizer) -> ClassIds:
    classes: dict[str, int] = {}
    return np.array(
        [classes.setdefault(key, len(classes)) for key in _keys(backend)], dtype=np.int64
    )


def _resize(base: ClassIds, num_ids: int | None) -> ClassIds:
    if num_ids is None or num_ids == len(base):
        return base
    if num_ids < len(base):
        return base[:num_ids]
    first = int(base.max()) + 1
    return np.concatenate([base, np.arange(first, first + num_ids - len(base), dtype=np.int64)])


def _read(path: Path) -> ClassIds | None:
    try:
        stored: ClassIds = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None  # a damaged cache file is rebuilt, not trusted
    return stored if stored.dtype == np.int64 and stored.ndim == 1 else None


def _write(path: Path, base: ClassIds) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as handle:
        np.save(handle, base)
    os.replace(handle.name, path)  # readers see the whole file or none
