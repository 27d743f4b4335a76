"""From settings to what the HTTP side serves: model, memory, prefetcher and engine, wired.

The one place that knows all of them. Knows no HTTP.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch

from engram_core.backbone import text_config
from engram_core.device import Device, make_device
from engram_core.device_placement import cache_on_device
from engram_core.errors import ConfigError, UnsupportedModelError
from engram_core.inline_limit import DEFAULT_INLINE_MAX_ROWS
from engram_core.memory_config import MemoryConfig
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach
from engram_core.version import MemoryVersion
from server.config import Settings
from server.engine.engine import Engine
from server.engine.limits import EngineLimits
from server.engine.tuning import Tuning
from server.engine.types import Recorder
from server.heap import give_back_freed_memory
from server.hot_lists import load_hot_lists, prepare_hot_lists
from server.loader import Loaded, load
from server.memory_info import memory_facts
from server.memory_swap import MemorySwap, SwapPlace
from server.runtime import Backend, Progress
from server.sizes import format_size

DEFAULT_MAX_MODEL_LEN = 2048


def load_backend(settings: Settings, recorder: Recorder, progress: Progress) -> Backend:
    """Load everything that `settings` name and wire it; the engine is not started yet.

    Raises:
        LoadError, ArtefactError, UnsupportedModelError, ConfigError, DeviceError: see there.
    """
    device = make_device(settings.device)
    memory_config = MemoryConfig.from_dict(settings.engram_config or {})
    refuse_reuse_without_rows(settings, memory_config)
    prepare_hot_lists(memory_config)
    loaded = load(settings, progress, memory_config)
    backend = assemble(settings, loaded, device, memory_config, recorder, progress)
    give_back_freed_memory()
    return backend


def assemble(
    settings: Settings,
    loaded: Loaded,
    device: Device,
    memory_config: MemoryConfig,
    recorder: Recorder,
    progress: Progress = lambda _phase, _fraction: None,
) -> Backend:
    """Wire what was loaded; `progress` hears of hot rows, if lists of them are kept."""
    refuse_too_large(loaded.model, device)
    model, version = loaded.model.to(device.torch_device), loaded.version
    prefetcher = None
    if version is not None:
        version = cache_on_device(version, device, memory_config)
    load_hot_lists(version, memory_config, progress, loaded.timings)
    if version is not None:
        prefetcher = _attach(settings, model, version, device, memory_config)
    limits = engine_limits(settings, model, device)
    num_parameters = sum(p.numel() for p in model.parameters())  # packing hides some of them
    engine = Engine(
        model,
        loaded.tokenizer,
        version,
        prefetcher,
        limits,
        recorder,
        device=device,
        tuning=tuning_of(settings),
    )

    swap = _make_swap(
        settings, replace(loaded, version=version), engine, prefetcher, memory_config, device
    )

    give_back = version.release if version is not None and swap is None else None

    def close() -> None:
        if prefetcher is not None:
            prefetcher.close()
        if swap is not None:
            swap.close()
        elif give_back is not None:
            give_back()

    memory = memory_facts(loaded.artefact, version, prefetcher)
    return Backend(
        engine=engine,
        tokenizer=loaded.tokenizer,
        max_model_len=limits.max_model_len,
        device=device.name,
        dtype=str(model.dtype).removeprefix("torch."),
        has_memory=version is not None,
        memory_id=memory.id,
        model_info={
            **_describe_model(loaded, engine),
            **_describe_kernels(engine),
            "parameters": num_parameters,
            "fused_layers": asdict(engine.fused),
            "packed_linears": engine.num_packed,
        },
        engram_info=memory.info,
        table_bytes=memory.table_bytes,
        resident_bytes=memory.resident_bytes,
        why_tiers=memory.why,
        memory=memory.version,
        load_s=loaded.timings,
        close=close,
        swap=swap,
    )


def _make_swap(
    settings: Settings,
    loaded: Loaded,
    engine: Engine,
    prefetcher: Prefetcher | None,
    memory_config: MemoryConfig,
    device: Device,
) -> MemorySwap | None:
    if loaded.artefact is None or loaded.version is None or prefetcher is None:
        return None
    place = SwapPlace(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        device=device,
        engine=engine,
        prefetcher=prefetcher,
        engram_dir=settings.engram_dir,
        config=memory_config,
    )
    return MemorySwap(place, loaded.artefact, loaded.version)


def refuse_reuse_without_rows(settings: Settings, memory: MemoryConfig) -> None:
    """Refuse to keep for others what is computed while rows are missing.

    Raises:
        ConfigError: missing rows read as never written, and prefixes are reused.
    """
    if memory.on_row_failure == "off" and settings.prefix_cache == "on":
        raise ConfigError(
            "on_row_failure is 'off' beside --prefix-cache on, which would reuse what was computed "
            "without the rows; accepted: fail, or --prefix-cache off"
        )


def refuse_too_large(model: Any, device: Device) -> None:
    """Refuse a model whose weights do not fit on a device with memory of its own.

    Raises:
        UnsupportedModelError: names both sizes.
    """
    needed_bytes = sum(p.nbytes for p in model.parameters())
    free_bytes, _ = device.memory()
    if not device.shares_host_memory and needed_bytes > free_bytes:
        raise UnsupportedModelError(
            f"the model's weights are {format_size(needed_bytes)} and {device.name} has "
            f"{format_size(free_bytes)} free; accepted: a model that fits on one device"
        )


def engine_limits(settings: Settings, model: Any, device: Device) -> EngineLimits:
    """The engine's limits; lengths that the settings leave open follow the model."""
    positions = int(getattr(text_config(model), "max_position_embeddings", DEFAULT_MAX_MODEL_LEN))
    return EngineLimits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len or min(positions, DEFAULT_MAX_MODEL_LEN),
        max_queue_len=settings.max_queue_len,
        max_queued_tokens=settings.max_queued_tokens,
        kv_cache_bytes=settings.kv_cache_memory,
        max_decode_slowdown=settings.max_decode_slowdown,
        prefix_cache=settings.prefix_cache == "on",
        free_memory_bytes=device.memory()[0],
    )


def tuning_of(settings: Settings) -> Tuning:
    """How the engine is told to compute."""
    return Tuning(
        quantize=settings.quantize,
        deterministic=settings.deterministic == "on",
        kernels=settings.kernels,
        graphs=settings.graphs,
    )


def _attach(
    settings: Settings,
    model: Any,
    version: MemoryVersion,
    device: Device,
    memory_config: MemoryConfig,
) -> Prefetcher:
    for module in version.modules.values():
        module.to(device.torch_device, model.dtype)
    attach(model, version)
    told = memory_config.inline_max_rows
    return Prefetcher(
        device,
        enabled=settings.prefetch == "on",
        inline_max_rows=DEFAULT_INLINE_MAX_ROWS if told == "auto" else told,
        staging_bytes=memory_config.staging_bytes,
        dtype=torch.bfloat16 if model.dtype == torch.bfloat16 else torch.float32,
        audit_share=settings.prefetch_audit,
    )


def _describe_model(loaded: Loaded, engine: Engine) -> dict[str, Any]:
    config = text_config(loaded.model)
    return {
        "name": loaded.name,
        "architecture": engine.report.architecture,
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "vocabulary": config.vocab_size,
        "attention_check_error": engine.report.error,
    }


def _describe_kernels(engine: Engine) -> dict[str, Any]:
    """How the model is computed, as /info tells it; ``decode_path`` there speaks of graphs."""
    return {
        "quantize": engine.tuning.quantize,
        "deterministic": engine.tuning.deterministic,
        "kernels": engine.native.reason,
        "weight_formats": engine.native.formats,
        "native_weight_bytes": engine.native.nbytes,
    }
