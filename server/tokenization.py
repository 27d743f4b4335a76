"""Prompts to token ids, off the event loop.

Uses the Rust tokenizer directly: its `encode` changes no state and releases the GIL, whereas
transformers' wrapper sets truncation and padding on a shared object at every call.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

NUM_THREADS = 2


class PromptTokenizer:
    """Tokenises prompts with a transformers fast tokenizer or a `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: Any) -> None:
        self._wrapped = tokenizer
        self._rust = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._is_fast = hasattr(self._rust, "no_truncation")
        if self._is_fast:  # a tokenizer file may ask for either; neither may happen silently
            self._rust.no_truncation()
            self._rust.no_padding()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")

    def encode(self, text: str) -> list[int]:
        """Token ids, with the special tokens that the model expects around a text."""
        if self._is_fast:
            ids: list[int] = self._rust.encode(text, add_special_tokens=True).ids
            return ids
        return list(self._wrapped.encode(text))

    async def encode_in_thread(self, text: str) -> list[int]:
        """`encode`, while the event loop goes on."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.encode, text)

    def close(self) -> None:
        """End the threads; what they still do is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
