"""Puts a model into the cache without serving it."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download

from server.config import Settings
from server.loader import Progress, resolve_source

# weights, configuration and tokenizer; never pickled weights or code
WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja")


def fetch_model(settings: Settings, progress: Progress) -> Path:
    """The model's folder: the default model, a local folder, or a hub id that is downloaded.

    Raises:
        LoadError: it cannot be obtained.
    """
    source = resolve_source(settings.model, progress)
    if source.is_local:
        return Path(source.location)
    with source.translated_errors("files"):
        folder = snapshot_download(
            source.location, revision=settings.revision, allow_patterns=list(WANTED)
        )
    return Path(folder)
