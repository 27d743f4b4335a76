"""Token ids and their classes from files: what a plan counts instead of assuming.

``.npy`` and ``.json`` hold ids, any other name a text that a tokenizer turns into ids.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from engram_core.compression import TokenCompressor
from engram_core.errors import ConfigError

TOKENIZER_NAME = "tokenizer.json"
MAX_BYTES = 2**30
MAX_ID = 2**24 - 1  # a class is kept for every id up to the largest

Int64Array = npt.NDArray[np.int64]


def read_tokens(path: Path, tokenizer_path: Path | None) -> tuple[Int64Array, Int64Array]:
    """Ids ``[tokens]`` and the class of every id ``[num_ids]``.

    Without a tokenizer every id is a class of its own: nothing that reads alike is folded.

    Raises:
        ConfigError: a file is missing or is not what its name says.
    """
    tokenizer = None if tokenizer_path is None else open_tokenizer(tokenizer_path)
    if path.suffix in (".npy", ".json"):
        ids = read_ids(path)
    elif tokenizer is None:
        raise ConfigError(
            f"token_file is {path.name!r}, a text, and tokenizer is not given; accepted: a text "
            "with --tokenizer, or ids in a .npy or .json file"
        )
    else:
        encoded = tokenizer.encode(_text(path), add_special_tokens=False)
        ids = np.array(encoded.ids, dtype=np.int64)
    if tokenizer is None:
        return ids, np.arange(int(ids.max(initial=0)) + 1, dtype=np.int64)
    return ids, TokenCompressor.from_tokenizer(tokenizer).class_ids


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json`` or its folder; it neither cuts nor pads.

    Raises:
        ConfigError: it is missing or cannot be read.
    """
    file = path / TOKENIZER_NAME if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_buffer(_bytes("tokenizer", file))
    except ConfigError:
        raise
    except Exception:  # noqa: BLE001 - the library raises nothing more precise
        raise ConfigError(
            f"tokenizer is {file.name!r}, which cannot be read; accepted: a {TOKENIZER_NAME} or "
            "its folder"
        ) from None
    tokenizer.no_truncation()  # a tokenizer file may ask for either
    tokenizer.no_padding()
    return tokenizer


def read_ids(path: Path, field: str = "token_file", max_bytes: int = MAX_BYTES) -> Int64Array:
    """All ids of a ``.npy`` or ``.json`` file: int64 ``[tokens]``.

    Args:
        path: the file.
        field: what errors call it.
        max_bytes: of the file.

    Raises:
        ConfigError: the file is missing, larger, or not what its name says.
    """
    blob = _bytes(field, path, max_bytes)
    try:
        values = (
            json.loads(blob)
            if path.suffix == ".json"
            else np.load(io.BytesIO(blob), allow_pickle=False)
        )
    except (ValueError, EOFError, RecursionError):
        raise no_ids(path, field) from None
    return checked_ids(values, path, field)


def checked_ids(values: Any, path: Path, field: str) -> Int64Array:
    """Ids as int64 ``[tokens]``. Raises ConfigError for anything but ids in one list."""
    try:
        ids = np.asarray(values)
    except (ValueError, OverflowError):
        raise no_ids(path, field) from None
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise no_ids(path, field)
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= MAX_ID:
        raise ConfigError(
            f"{field} has ids from {ids.min()} to {ids.max()}; accepted: 0 to {MAX_ID}"
        )
    return ids.astype(np.int64)


def no_ids(path: Path, field: str) -> ConfigError:
    """The sentence about a file that does not hold one list of ids."""
    return ConfigError(f"{field} is {path.name!r}; accepted: one list of whole numbers in it")


def _text(path: Path) -> str:
    try:
        return _bytes("token_file", path).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"token_file is {path.name!r}; accepted: a text in UTF-8") from None


def _bytes(name: str, path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    try:
        if not path.is_file():
            raise ConfigError(f"{name} is {path.name!r}, which does not exist; accepted: a file")
        size = path.stat().st_size
        if size <= max_bytes:
            return path.read_bytes()
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise ConfigError(
            f"{name} is {path.name!r}, which cannot be read ({reason}); accepted: a file"
        ) from None
    raise ConfigError(f"{name} is {path.name!r} with {size} bytes; accepted: up to {max_bytes}")
