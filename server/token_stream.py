"""TokenStream: the ids of a text or token file of any size, read as often as one likes.

A file is turned into ids once, piece by piece, into a temporary file of four bytes an id; only a
piece is ever in memory. Knows no memory and no hashing.
"""

from __future__ import annotations

import codecs
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.lib import format as npy
from tokenizers import Tokenizer

from engram_core.errors import ConfigError
from server.token_file import Int64Array, checked_ids, no_ids, read_ids

FIELD = "tokens"  # what errors call the file
MAX_JSON_BYTES = 64 * 2**20  # a JSON file is parsed whole
_TEXT_BYTES = 16 * 2**20  # of a text, tokenised at once
_CHUNK_IDS = 2**18


class TokenStream:
    """The ids of a file, at least one; a context manager, since it holds a temporary file.

    Args:
        path: ``.npy`` or ``.json`` with ids, any other name a text in UTF-8.
        tokenizer: turns a text into ids.

    Raises:
        ConfigError: the file is missing, empty, or not what its name says.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self._spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._length = 0
        try:
            for ids in _pieces(path, tokenizer):
                self._keep(ids)
            if not self._length:
                raise ConfigError(f"{FIELD} is {path.name!r} without a token; accepted: some")
        except BaseException:
            self._spool.close()
            raise

    def _keep(self, ids: Int64Array) -> None:
        try:
            self._spool.write(ids.astype("<i4").tobytes())
            self._spool.flush()
        except OSError as error:
            raise ConfigError(
                f"the ids of {FIELD} cannot be kept in the temporary folder ({error.strerror}); "
                "accepted: one with 4 bytes free for every token (TMPDIR)"
            ) from None
        self._length += len(ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()

    def __len__(self) -> int:
        return self._length

    def chunks(self) -> Iterator[Int64Array]:
        """All ids in order: int64 ``[n]`` each."""
        self._spool.seek(0)
        while blob := self._spool.read(4 * _CHUNK_IDS):
            yield np.frombuffer(blob, "<i4").astype(np.int64)


def _pieces(path: Path, tokenizer: Tokenizer) -> Iterator[Int64Array]:
    if path.suffix == ".json":
        yield read_ids(path, FIELD, MAX_JSON_BYTES)
        return
    try:
        if not path.is_file():
            raise ConfigError(f"{FIELD} is {path.name!r}, which does not exist; accepted: a file")
        with path.open("rb") as file:
            yield from _array(path, file) if path.suffix == ".npy" else _text(path, file, tokenizer)
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise ConfigError(
            f"{FIELD} is {path.name!r}, which cannot be read ({reason}); accepted: a file"
        ) from None


def _array(path: Path, file: Any) -> Iterator[Int64Array]:
    """A .npy file's ids, read without mapping it."""
    try:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(file)
    except (ValueError, EOFError):
        raise no_ids(path, FIELD) from None
    if len(shape) != 1 or dtype.kind not in "iu":
        raise no_ids(path, FIELD)
    left = shape[0]
    while left:
        blob = file.read(min(left, _CHUNK_IDS) * dtype.itemsize)
        if not blob or len(blob) % dtype.itemsize:
            raise ConfigError(
                f"{FIELD} is {path.name!r}, which ends {left} ids early; accepted: {shape[0]} ids, "
                "as it says"
            )
        ids = np.frombuffer(blob, dtype)
        left -= len(ids)
        yield checked_ids(ids, path, FIELD)


def _text(path: Path, file: Any, tokenizer: Tokenizer) -> Iterator[Int64Array]:
    """A text's ids, tokenised in pieces that end with a line where they can."""
    decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
    is_last = False
    while not is_last:
        blob = file.read(_TEXT_BYTES)
        is_last = len(blob) < _TEXT_BYTES
        try:
            text = rest + decoder.decode(blob, final=is_last)
        except UnicodeDecodeError:
            raise ConfigError(f"{FIELD} is {path.name!r}; accepted: a text in UTF-8") from None
        cut = len(text) if is_last else (text.rfind("\n") + 1 or len(text))
        rest = text[cut:]
        encoded = tokenizer.encode(text[:cut], add_special_tokens=False)
        yield np.array(encoded.ids, dtype=np.int64)
