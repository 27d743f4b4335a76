"""A model made ready to be served: checked, its layers fused, then given the fastest kernels.

A replaced layer has no attention of transformers' to be compared with, so a model remembers what
was found before, and a second engine on it takes that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from engram_core.device import Device
from engram_core.errors import ConfigError
from engram_core.version import MemoryVersion
from server.engine.fuse.fusing import fuse_layers
from server.engine.fuse.report import FuseReport
from server.engine.limits import EngineLimits
from server.engine.linear.packing import pack_linears, pack_projection
from server.engine.model_rules import refuse_by_config, refuse_windows
from server.engine.native_report import NativeReport
from server.engine.sampler import Statistics
from server.engine.self_check import ModelReport, check_model
from server.engine.tuning import Tuning

_KEY = "engram_served"  # on the model itself, so that a copy of it knows, too
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What was found and done.

    Attributes:
        report: of the check, before anything was replaced.
        fused: which layers were.
        native: what compiled kernels compute.
        num_packed: linear layers in the layout of torch's own kernels.
        tuning: what it was made for.
    """

    report: ModelReport
    fused: FuseReport
    native: NativeReport
    num_packed: int
    tuning: Tuning


def make_served(
    model: Any, limits: EngineLimits, tuning: Tuning, device: Device | None = None
) -> ServedModel:
    """Check the model and prepare it, in place.

    Raises:
        UnsupportedModelError, ConfigError: see `self_check.check_model`; or the tuning asks for
            what this model or machine does not have.
    """
    before: ServedModel | None = getattr(model, _KEY, None)
    if before is not None:
        _check_again(model, before, limits, tuning)
        return before
    report = check_model(model, limits.max_model_len)
    fused = fuse_layers(model, report)
    native = _go_native(model, report, limits, tuning, device)
    is_native = native.num_layers + native.num_linears > 0
    served = ServedModel(report, fused, native, 0 if is_native else pack_linears(model), tuning)
    if fused.num_fused or is_native:
        setattr(model, _KEY, served)
    return served


def _check_again(model: Any, before: ServedModel, limits: EngineLimits, tuning: Tuning) -> None:
    """What depends on the engine and not on the model alone."""
    refuse_by_config(model, limits.max_model_len)
    windows = {layer: options.sliding_window for layer, options in enumerate(before.report.options)}
    refuse_windows(model, windows, limits.max_model_len)
    if tuning.kernels_key != before.tuning.kernels_key:
        raise ConfigError(
            f"the model was prepared for {before.tuning}; accepted: an engine of the same tuning, "
            "or a model that was loaded anew"
        )


def _go_native(
    model: Any,
    report: ModelReport,
    limits: EngineLimits,
    tuning: Tuning,
    device: Device | None,
) -> NativeReport:
    """Move the model to compiled kernels where they are wanted and right."""
    reason = _why_torch(model, tuning, device)
    if reason is None:
        _log.info("loading compiled kernels; the first time they are compiled, for half a minute")
        from server.engine.native.loading import go_native  # noqa: PLC0415 - imports numba

        native = go_native(model, report, limits.block_size, tuning)
    else:
        native = NativeReport(0, 0, "as loaded", 0, reason)
    _refuse_unmet(native, tuning)
    _log.info("kernels: %s", native.reason)
    return native


def _why_torch(model: Any, tuning: Tuning, device: Device | None) -> str | None:
    """Why torch's own kernels compute the model; None when compiled ones may."""
    if tuning.kernels == "torch":
        return "torch: chosen by the setting kernels"
    name = "cpu" if device is None else device.name
    if name != "cpu" or torch.device(model.device).type != "cpu":
        return f"torch: the model runs on {name if name != 'cpu' else model.device}"
    if tuning.quantize == "none" and model.dtype != torch.bfloat16:
        return f"torch: the weights are {str(model.dtype).removeprefix('torch.')}, not bfloat16"
    return None if find_spec("numba") else "torch: numba is not installed"


def _refuse_unmet(native: NativeReport, tuning: Tuning) -> None:
    """Refuse what the tuning insists on and the model did not get."""
    if tuning.kernels == "native" and native.num_layers == 0:
        raise ConfigError(
            f'kernels is "native" ({native.reason}); accepted here: "auto" or "torch"'
        )
    if tuning.quantize != "none" and native.num_layers + native.num_linears == 0:
        raise ConfigError(
            f'quantize is "{tuning.quantize}" ({native.reason}); accepted here: "none"'
        )
    if tuning.deterministic and native.num_layers == 0:
        raise ConfigError(f"deterministic is on ({native.reason}); accepted here: off")


def fast_statistics(served: ServedModel) -> Statistics | None:
    """What the sampler asks of each row of logits, on the kernels; None: torch does it."""
    if not served.native.num_layers:
        return None
    from server.engine.native.loading import native_statistics  # noqa: PLC0415 - imports numba

    return native_statistics()


def speed_up_memory(served: ServedModel, version: MemoryVersion) -> None:
    """Give the memory's projections the kernels that compute the layers."""
    if served.native.num_layers:
        from server.engine.native.loading import project_natively  # noqa: PLC0415 - imports numba

        project_natively(version, is_fixed=served.tuning.deterministic)
        return
    for module in version.modules.values():
        pack_projection(module)
