"""A model made ready to be served: checked, its layers fused, its linear layers packed.

A fused layer has no attention of transformers' to be compared with, so a model remembers what was
found before, and a second engine on it takes that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from server.engine.fuse.fusing import fuse_layers
from server.engine.fuse.report import FuseReport
from server.engine.linear.packing import pack_linears
from server.engine.model_rules import refuse_by_config, refuse_windows
from server.engine.self_check import ModelReport, check_model

_KEY = "engram_served"  # on the model itself, so that a copy of it knows, too


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What was found and done.

    Attributes:
        report: of the check, before anything was replaced.
        fused: which layers were.
        num_packed: linear layers in the processor's own layout.
    """

    report: ModelReport
    fused: FuseReport
    num_packed: int


def make_served(model: Any, max_model_len: int) -> ServedModel:
    """Check the model and prepare it, in place.

    Raises:
        UnsupportedModelError, ConfigError: see `self_check.check_model`.
    """
    before: ServedModel | None = getattr(model, _KEY, None)
    if before is not None:
        _check_length(model, before.report, max_model_len)
        return before
    report = check_model(model, max_model_len)
    fused = fuse_layers(model, report)
    served = ServedModel(report, fused, pack_linears(model))
    if fused.num_fused:
        setattr(model, _KEY, served)
    return served


def _check_length(model: Any, report: ModelReport, max_model_len: int) -> None:
    """What of the check depends on the length."""
    refuse_by_config(model, max_model_len)
    windows = {layer: options.sliding_window for layer, options in enumerate(report.options)}
    refuse_windows(model, windows, max_model_len)
