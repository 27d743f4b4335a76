"""Replaces the decoder layers of a model by fused ones, each only if its numbers are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from engram_core.backbone import find_decoder_layers
from engram_core.errors import UnsupportedModelError
from server.engine.attention import AttentionOptions
from server.engine.fuse.calls import Call, record_calls
from server.engine.fuse.fused_layer import FusedLayer
from server.engine.fuse.recognise import recognise
from server.engine.fuse.report import FuseReport
from server.engine.fuse.verify import difference
from server.engine.hooks import carry_over

if TYPE_CHECKING:
    from server.engine.self_check import ModelReport


def fuse_layers(model: Any, report: ModelReport) -> FuseReport:
    """Fuse what can be fused, in place, one layer after the other.

    Args:
        model: a checked model with our attention switched on.
        report: what the check found about it.
    """
    try:
        layers = find_decoder_layers(model)
    except UnsupportedModelError as error:
        return FuseReport(0, len(report.options), str(error))
    reasons = _fuse_each(model, layers, report)
    refused = [reason for reason in reasons if reason is not None]
    return FuseReport(len(layers) - len(refused), len(layers), refused[0] if refused else None)


def _fuse_each(model: Any, layers: nn.ModuleList, report: ModelReport) -> list[str | None]:
    calls = record_calls(model, layers)
    return [
        _fuse(layers, index, options, calls.get(index))
        for index, options in enumerate(report.options)
    ]


def _fuse(
    layers: nn.ModuleList, index: int, options: AttentionOptions, call: Call | None
) -> str | None:
    """Replace one layer, or say why not."""
    original = layers[index]
    parts = recognise(original, index, options)
    if isinstance(parts, str):
        return parts
    fused = FusedLayer(parts).train(original.training)
    reason = difference(original, fused, call)
    if reason is not None:
        return f"layer {index} {reason}"
    carry_over(original, fused)
    layers[index] = fused
    return None
