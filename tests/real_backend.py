"""The real engine over a tiny model and memory, loadable by the real application."""

from __future__ import annotations

import threading
from pathlib import Path

from models import random_memory, tiny_llama
from transformers import AutoTokenizer

from engram_core.compression import TokenCompressor
from engram_core.device import make_device
from engram_core.memory_config import MemoryConfig
from server.backend import assemble, load_backend
from server.loader import Loaded
from server.runtime import Backend

TOKENIZER = Path(__file__).parent / "golden" / "demo_v1" / "tokenizers" / "tiny_bytelevel"


class TinyLoader:
    """Callable as `load`. `wrap` may put another tier around each layer's table."""

    def __init__(self, wrap=lambda tier: tier, layer_ids=(8, 10), **model) -> None:
        self.may_finish = threading.Event()
        self.may_finish.set()
        self.engine = None
        self.tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
        shape = {"num_hidden_layers": 12, "hidden_size": 128, "intermediate_size": 512}
        self.model = tiny_llama(
            **{**shape, "vocab_size": len(self.tokenizer), "max_position_embeddings": 1024, **model}
        )
        class_ids = TokenCompressor.from_tokenizer(self.tokenizer).class_ids
        self.version = random_memory(
            self.model, layer_ids=layer_ids, class_ids=class_ids, wrap=wrap
        )

    def __call__(self, settings, metrics, progress) -> Backend:
        loaded = Loaded(self.model, self.tokenizer, "tiny", self.version, None, {"weights": 0.1})
        device = make_device(settings.device)
        config = MemoryConfig.from_dict(settings.engram_config or {})
        backend = assemble(settings, loaded, device, config, metrics)
        self.engine = backend.engine
        return backend


class LoadReal:
    """The server's own loader, for folders on disk."""

    def __init__(self):
        self.may_finish = threading.Event()

    def __call__(self, settings, metrics, progress) -> Backend:
        return load_backend(settings, metrics, progress)
