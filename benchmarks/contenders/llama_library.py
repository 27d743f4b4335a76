"""llama.cpp's C library through ctypes: as much of it as greedy decoding of batches needs.

Works with any folder of prebuilt libraries (`libllama*.so` and the `libggml*.so` it needs).
Parameter structures are taken as 32-bit words: the library fills in its defaults, and a few words
at known places are changed after their defaults were recognised there. A release that lays them
out differently is refused, not misread.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contender import UnavailableError

NUM_WORDS = 128  # more than any release's parameters; the library reads only its own part
# place of a word -> name, and the default that must be found there
CONTEXT_WORDS = {"n_ctx": 0, "n_batch": 1, "n_ubatch": 2, "n_seq_max": 3, "n_threads": 7}
CONTEXT_WORDS |= {"n_threads_batch": 8, "flash_attention": 13}
CONTEXT_DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1}
CONTEXT_DEFAULTS |= {"n_threads": 4, "n_threads_batch": 4, "flash_attention": 0xFFFFFFFF}


class Words(ctypes.Structure):
    """A parameter structure of unknown length."""

    _fields_ = (("word", ctypes.c_uint32 * NUM_WORDS),)


class TokenBatch(ctypes.Structure):
    """`llama_batch`."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class LlamaModel:
    """A model and one context, on the CPU.

    Args:
        folder: where the libraries lie.
        gguf: the model file.
        num_seqs: sequences side by side.
        seq_tokens: longest prompt plus answer of one.
        num_threads: threads that compute.

    Raises:
        UnavailableError: the libraries cannot be used.
    """

    max_batch = 2048  # tokens of one call

    def __init__(
        self, folder: Path, gguf: Path, *, num_seqs: int, seq_tokens: int, num_threads: int
    ) -> None:
        self._lib = _load(folder)
        self._model = self._lib.llama_model_load_from_file(
            str(gguf).encode(), self._lib.llama_model_default_params()
        )
        if not self._model:
            raise UnavailableError(f"llama.cpp: the libraries in {folder} cannot load {gguf.name}")
        params = _context_params(self._lib, folder)
        wanted = {"n_ctx": num_seqs * seq_tokens, "n_batch": self.max_batch, "n_seq_max": num_seqs}
        wanted |= {"n_threads": num_threads, "n_threads_batch": num_threads}
        for name, value in wanted.items():
            params.word[CONTEXT_WORDS[name]] = value
        self._context = self._lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise UnavailableError(f"llama.cpp: the libraries in {folder} made no context")
        self._vocabulary = self._lib.llama_vocab_n_tokens(
            self._lib.llama_model_get_vocab(self._model)
        )
        self._batch = self._lib.llama_batch_init(self.max_batch, 0, 1)

    def forget(self) -> None:
        """Drop all sequences."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def decode(self, tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """Compute tokens; each is (id, sequence, position, whether its successor is asked for).

        Returns the likeliest successors, in order. Raises RuntimeError when the library fails.
        """
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, (token_id, sequence, position, wants_next) in enumerate(tokens):
            batch.token[index], batch.pos[index] = token_id, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = wants_next
        code = self._lib.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode failed with {code}")
        return [self._argmax(index) for index, token in enumerate(tokens) if token[3]]

    def _argmax(self, index: int) -> int:
        pointer = self._lib.llama_get_logits_ith(self._context, index)
        logits = np.ctypeslib.as_array(pointer, (self._vocabulary,))
        return int(logits.argmax())

    def close(self) -> None:
        """Free everything."""
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


def _load(folder: Path) -> Any:
    """The library with its functions declared, and the best backend for this processor."""
    try:
        for pattern in ("libggml-base*", "libggml.*"):
            ctypes.CDLL(str(_find(folder, pattern)), mode=ctypes.RTLD_GLOBAL)
        ggml = ctypes.CDLL(str(_find(folder, "libggml.*")))
        lib = ctypes.CDLL(str(_find(folder, "libllama.*")))
        _declare(lib)
        lib.llama_log_set(_SILENCE, None)
        lib.llama_backend_init()
        ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
        ggml.ggml_backend_load_all_from_path(str(folder).encode())
    except (OSError, AttributeError) as error:
        raise UnavailableError(f"llama.cpp: {error}") from None
    return lib


def _find(folder: Path, pattern: str) -> Path:
    found = sorted(path for path in folder.glob(pattern) if ".so" in path.name)
    if not found:
        raise UnavailableError(f"llama.cpp: {folder} has no {pattern}.so")
    return found[0]


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENCE = _LOG(lambda _level, _text, _data: None)


def _declare(lib: Any) -> None:
    pointer, word = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
        ("llama_log_set", None, [_LOG, pointer]),
        ("llama_backend_init", None, []),
        ("llama_model_default_params", Words, []),
        ("llama_context_default_params", Words, []),
        ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Words]),
        ("llama_init_from_model", pointer, [pointer, Words]),
        ("llama_model_get_vocab", pointer, [pointer]),
        ("llama_vocab_n_tokens", word, [pointer]),
        ("llama_batch_init", TokenBatch, [word, word, word]),
        ("llama_batch_free", None, [TokenBatch]),
        ("llama_get_memory", pointer, [pointer]),
        ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
        ("llama_decode", word, [pointer, TokenBatch]),
        ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, word]),
        ("llama_free", None, [pointer]),
        ("llama_model_free", None, [pointer]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def _context_params(lib: Any, folder: Path) -> Words:
    params: Words = lib.llama_context_default_params()
    found = {name: params.word[CONTEXT_WORDS[name]] for name in CONTEXT_DEFAULTS}
    if found != CONTEXT_DEFAULTS:
        raise UnavailableError(
            f"llama.cpp: the libraries in {folder} are of a release whose parameters are laid out "
            "differently; docs/benchmarks.md names one that works"
        )
    return params
