"""Loads what is served: backbone, tokenizer and Engram memory. The one caller of `from_pretrained`.

Only safetensors weights and the library's own model code are accepted. Knows nothing about
engines or HTTP; error texts name models and settings, never paths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging as transformers_logging

from engram_core.assembly import open_version, packed_bytes
from engram_core.compression import TokenCompressor
from engram_core.memory_config import MemoryConfig
from engram_core.splice import check_streams_of_memory, check_streams_of_model
from engram_core.tables import Artefact, open_table
from engram_core.tables.backbone_record import describe_backbone
from engram_core.tables.in_place import open_in_place
from engram_core.tables.manifest import BackboneRecord
from engram_core.version import MemoryVersion
from server.artefact_choice import choose_artefact, is_native
from server.default_model import DEFAULT_MODEL_NAME, default_cache_dir, resolve_default_model
from server.load_errors import LoadError
from server.phase_share import PhaseShare

Progress = Callable[[str, float], None]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CLASS_MAPS = "class-maps"  # folder of built token class maps inside the cache


class LoadSettings(Protocol):
    """The settings that loading reads."""

    @property
    def model(self) -> str | None:
        """A local folder or a hub id; None for the default model."""

    @property
    def revision(self) -> str | None:
        """Branch, tag or commit on the hub."""

    @property
    def dtype(self) -> str:
        """``"auto"`` or a key of `DTYPES`."""

    @property
    def engram(self) -> str:
        """``"auto"``, ``"none"``, an artefact's folder or its name."""

    @property
    def engram_dir(self) -> Path | None:
        """Folder of artefacts."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load` returns.

    Attributes:
        model: the frozen backbone, on the CPU. tokenizer: its fast tokenizer.
        name: what answers call the model.
        version: the memory, holding one reference; None without a memory.
        artefact: the opened artefact; None without a memory.
        timings: seconds per phase.
    """

    model: Any
    tokenizer: Any
    name: str
    version: MemoryVersion | None
    artefact: Artefact | None
    timings: dict[str, float]


def load(
    settings: LoadSettings,
    progress: Progress = lambda _phase, _fraction: None,
    memory: MemoryConfig | None = None,
) -> Loaded:
    """Load everything that `settings` name, the tables where `memory` says.

    `progress` receives a phase (``source`` with ``download`` and ``convert`` inside it,
    ``tokenizer``, ``weights``, ``memory``) and the
    fraction of it that is done.

    Raises:
        LoadError: the model or artefact cannot be found or is not acceptable.
        ArtefactError: the artefact is damaged or was made for something else.
    """
    clock = _PhaseClock(progress)
    quiet: Any = transformers_logging.disable_progress_bar  # untyped in the library
    quiet()
    with clock.phase("source"):
        source = resolve_source(settings.model, progress)
        source.refuse_remote_code(settings.revision)
    with clock.phase("tokenizer"):
        tokenizer = load_tokenizer(source, settings.revision)
    with clock.phase("weights"):
        model = _load_model(source, settings.revision, settings.dtype)
    with clock.phase("memory"):
        artefact, version = _load_memory(settings, model, source.name, tokenizer, memory, progress)
    return Loaded(model, tokenizer, source.name, version, artefact, clock.timings)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from.

    Attributes:
        location: a folder's path or a hub id, as transformers takes it.
        name: what people may be told.
        is_local: whether it is a folder.
    """

    location: str
    name: str
    is_local: bool

    def refuse_remote_code(self, revision: str | None) -> None:
        """Refuse a model that brings its own Python code, or is no model at all."""
        with self.translated_errors("configuration"):
            config, _ = PreTrainedConfig.get_config_dict(self.location, revision=revision)
            tokenizer_config = get_tokenizer_config(self.location, revision=revision)
        if not config:
            raise LoadError(f"the model {self.name!r} has no configuration (config.json)")
        for data in (config, tokenizer_config):
            if data.get("auto_map"):
                raise LoadError(
                    f"the model {self.name!r} needs code of its own (auto_map); accepted: models "
                    "whose architecture is part of transformers"
                )

    def refuse_pickle(self) -> None:
        """Refuse a local folder without safetensors weights (hub ids are refused on download)."""
        if self.is_local and not any(Path(self.location).glob("*.safetensors")):
            raise LoadError(
                f"the model {self.name!r} holds no safetensors weights; accepted: safetensors "
                "(pickled weights are never read)"
            )

    @contextmanager
    def translated_errors(self, what: str) -> Iterator[None]:
        """Turn the library's errors, which carry paths and addresses, into one sentence."""
        try:
            yield
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            hint = (
                "accepted: a folder in Hugging Face format"
                if self.is_local
                else "it does not exist on the hub, is not permitted, has no safetensors weights, "
                "or the hub cannot be reached"
            )
            raise LoadError(
                f"the {what} of the model {self.name!r} cannot be loaded "
                f"({type(error).__name__}): {hint}"
            ) from error


def resolve_source(model: str | None, progress: Progress) -> Source:
    """Tell a folder from a hub id; without a name, obtain the default model.

    Raises:
        LoadError: a path that is no folder, or the default model cannot be obtained.
    """
    if model is None:
        folder = resolve_default_model(default_cache_dir(), progress)
        return Source(str(folder), DEFAULT_MODEL_NAME, is_local=True)
    path = Path(model).expanduser()
    if path.is_dir():
        return Source(str(path), path.resolve().name, is_local=True)
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise LoadError(
            f"the model folder {path.name!r} does not exist; accepted: a folder in Hugging Face "
            "format or a hub id such as owner/name"
        )
    return Source(model, model, is_local=False)


def load_tokenizer(source: Source, revision: str | None) -> Any:
    """A model's fast tokenizer. Raises LoadError when there is none."""
    with source.translated_errors("tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            source.location, revision=revision, trust_remote_code=False
        )
    if not tokenizer.is_fast:
        raise LoadError(
            f"the model {source.name!r} has only a slow tokenizer; accepted: one with a "
            "tokenizer.json"
        )
    return tokenizer


def _load_model(source: Source, revision: str | None, dtype: str) -> Any:
    if dtype != "auto" and dtype not in DTYPES:
        raise LoadError(f"dtype is {dtype!r}; accepted: auto, {', '.join(DTYPES)}")
    source.refuse_pickle()
    with source.translated_errors("weights"):
        model: Any = AutoModelForCausalLM.from_pretrained(
            source.location,
            revision=revision,
            dtype=DTYPES.get(dtype, "auto"),
            use_safetensors=True,
            trust_remote_code=False,
        )
    return model.eval().requires_grad_(False)


def _load_memory(
    settings: LoadSettings,
    model: Any,
    name: str,
    tokenizer: Any,
    memory: MemoryConfig | None,
    progress: Progress,
) -> tuple[Artefact | None, MemoryVersion | None]:
    if settings.engram == "none":
        return None, None
    record = describe_backbone(model, name)
    folder = choose_artefact(settings.engram, settings.engram_dir, record.fingerprint)
    if folder is None:
        return None, None
    check_streams_of_model(model)  # before tables are read for nothing
    return open_memory(folder, record, tokenizer, memory or MemoryConfig(), progress)


def open_memory(
    folder: Path,
    backbone: BackboneRecord,
    tokenizer: Any,
    memory: MemoryConfig,
    progress: Progress = lambda _phase, _fraction: None,
) -> tuple[Artefact, MemoryVersion]:
    """Open and check an artefact for a model, its tables where `memory` says.

    Args:
        folder: the artefact.
        backbone: the model that it has to be made for.
        tokenizer: the model's.
        memory: where tables lie.
        progress: receives the phase ``memory`` and the fraction of the tables that was read.

    Raises:
        ArtefactError: it is damaged or was made for something else.
        ConfigError: its tables cannot lie where `memory` says.
        TierError: a row server cannot be reached, or a table was changed meanwhile.
    """
    is_remote, maps = memory.tier == "remote", default_cache_dir() / CLASS_MAPS
    if is_native(folder):
        artefact = open_table(folder, with_tables=not is_remote)
    else:
        artefact = open_in_place(folder, backbone, tokenizer, maps)
    check_streams_of_memory(artefact.config)
    artefact.check_backbone(backbone.fingerprint, backbone.hidden_size, backbone.num_layers)
    compressor = TokenCompressor.from_tokenizer(
        tokenizer,
        artefact.manifest.tokenizer.num_ids,
        maps,
        fold=artefact.config.folds_tokens,
    )
    told = PhaseShare(progress, "memory", 0 if is_remote else packed_bytes(artefact))
    return artefact, open_version(artefact, compressor, memory, progress=told)


@dataclass
class _PhaseClock:
    """Reports phases and keeps how long each took."""

    progress: Progress
    timings: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.progress(name, 0.0)
        started = time.monotonic()
        yield
        self.timings[name] = time.monotonic() - started
        self.progress(name, 1.0)
