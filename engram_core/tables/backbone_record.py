"""What an artefact records of the model it belongs to, read off a loaded model."""

from __future__ import annotations

from typing import Any

from engram_core.backbone import backbone_fingerprint, find_decoder_layers, hidden_size
from engram_core.tables.manifest import BackboneRecord


def describe_backbone(model: Any, name: str) -> BackboneRecord:
    """What an artefact records of the model it belongs to."""
    return BackboneRecord(
        name=name,
        fingerprint=backbone_fingerprint(model),
        hidden_size=hidden_size(model),
        num_layers=len(find_decoder_layers(model)),
    )
