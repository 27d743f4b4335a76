"""What `serve` would load, read from configuration files and manifests alone."""

from __future__ import annotations

from typing import Any

from engram_core.tables import open_table
from server.artefact_choice import list_artefacts
from server.config import Settings
from server.default_model import DEFAULT_MODEL_NAME
from server.memory_info import describe_artefact


def preview(settings: Settings) -> dict[str, Any]:
    """Model, device and artefacts as JSON-ready facts.

    Raises:
        ArtefactError: an artefact is damaged.
        LoadError: the named artefact does not exist.
    """
    folders = list_artefacts(settings.engram, settings.engram_dir)
    return {
        "model": settings.model or DEFAULT_MODEL_NAME,
        "device": settings.device,
        "dtype": settings.dtype,
        "engram": settings.engram,
        "artefacts": [describe_artefact(open_table(folder)) for folder in folders],
    }
