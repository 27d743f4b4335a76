"""What `serve` would load, read from configuration files and manifests alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engram_core.tables import open_foreign, open_table
from server.artefact_choice import is_native, list_artefacts
from server.config import Settings
from server.default_model import DEFAULT_MODEL_NAME
from server.memory_info import describe_artefact, describe_foreign


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
        "artefacts": [_describe(folder) for folder in folders],
    }


def _describe(folder: Path) -> dict[str, Any]:
    if is_native(folder):
        return describe_artefact(open_table(folder))
    return describe_foreign(folder.name, open_foreign(folder))
