"""Reads state dicts of the January 2026 demo's Engram module, saved as safetensors.

Every layer is one module; the layers may lie in one file under prefixes or in a file each. Which
layer a module belongs to is read from its table's offsets, never from a name: primes are distinct
in the whole model. The format does not say how many token classes there are, so it needs the
tokenizer. (engram-spec section 7; the keys of `config.json` are the demo's own.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engram_core.config import EngramConfig
from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.layout import HashLayout
from engram_core.tables.float_reader import FloatReader
from engram_core.tables.foreign_layout import build_layout
from engram_core.tables.imported import ClassMaps, ImportedMemory
from engram_core.tables.module_states import demo_module_state
from engram_core.tables.safetensors_file import SafetensorsFile
from engram_core.tables.tensor_source import TensorSource, TensorSpec

FORMAT = "demo"
MARK = "value_proj.weight"
CONFIG_NAME = "config.json"
TABLE, OFFSETS = "multi_head_embedding.embedding.weight", "multi_head_embedding.offsets"


class _Module:
    """One module's tensors: those of a file that share a prefix."""

    def __init__(self, source: TensorSource, prefix: str) -> None:
        self.source, self.prefix = source, prefix
        self.where = f"{source.name} {prefix}" if prefix else source.name

    def offsets(self) -> tuple[int, ...]:
        """First rows of the columns, as stored."""
        name = self.prefix + OFFSETS
        if name not in self.source.names or self.source.entry(name).dtype != "I64":
            raise ArtefactError(f"{self.source.name} lacks {name}; accepted: a list of I64")
        return tuple(self.source.read(name).flatten().tolist())

    def rows(self) -> int:
        """Rows of its table."""
        return self.source.num_rows(self.prefix + TABLE)

    def weights(self) -> dict[str, torch.Tensor]:
        """All but table and offsets, without the prefix."""
        names = self.source.names - {self.prefix + TABLE, self.prefix + OFFSETS}
        found = self.source.read_alike(names)
        return {name.removeprefix(self.prefix): tensor for name, tensor in found.items()}


def read_demo(
    files: Sequence[SafetensorsFile], data: Mapping[str, Any], maps: ClassMaps
) -> ImportedMemory:
    """The memory of saved demo modules.

    Args:
        files: the files that hold them, and nothing else.
        data: the demo's configuration; what it leaves out takes the demo's defaults.
        maps: where the class map comes from.

    Raises:
        ArtefactError: a tensor or a number is not what the format asks for.
        ConfigError: there is no tokenizer, or the configuration has unknown keys.
    """
    config = _config(data)
    compressor = maps.build(None, None)
    if compressor is None:
        raise ConfigError(
            "the demo's state dict does not say how many token classes there are; pass the "
            "tokenizer that it was trained with"
        )
    modules = [module for file in files for module in _modules(file)]
    found_rows = [module.rows() for module in modules]
    layout = build_layout(config, compressor.size, found_rows, files[0].name)
    by_layer = _by_layer(layout, modules)
    for layer, module in by_layer.items():
        module.source.check(_specs(layout, layer, module.prefix))
    return ImportedMemory(
        source_format=FORMAT,
        layout=layout,
        tables={k: FloatReader(m.source, m.prefix + TABLE) for k, m in by_layer.items()},
        modules={
            layer: demo_module_state(module.weights(), config.num_gates)
            for layer, module in by_layer.items()
        },
        compressor=compressor,
        num_token_ids=compressor.num_ids,
    )


def _config(data: Mapping[str, Any]) -> EngramConfig:
    try:
        return EngramConfig.from_demo(data)
    except TypeError as error:
        raise ArtefactError(f"{CONFIG_NAME} is not the demo's configuration: {error}") from None


def _modules(file: SafetensorsFile) -> list[_Module]:
    prefixes = sorted(name.removesuffix(TABLE) for name in file.entries if name.endswith(TABLE))
    modules = [_Module(TensorSource.of_file(file, prefix), prefix) for prefix in prefixes]
    taken = {name for module in modules for name in module.source.names}
    strangers = sorted(set(file.entries) - taken)
    if strangers:
        raise ArtefactError(f"{file.name}: unknown tensor {strangers[0]!r}")
    return modules


def _by_layer(layout: HashLayout, modules: Sequence[_Module]) -> dict[int, _Module]:
    """Each layer's module, by what its table's columns are."""
    known = {(layout.offsets[layer], layout.rows[layer]): layer for layer in layout.rows}
    found: dict[int, _Module] = {}
    for module in modules:
        columns = (module.offsets(), module.rows())
        if columns not in known:
            raise MismatchError(
                "offsets and rows (the sum of the primes)",
                expected=" or ".join(f"{o}, {r} (layer {k})" for (o, r), k in known.items()),
                found=f"{columns[0]}, {columns[1]}",
                where=module.where,
            )
        if known[columns] in found:
            raise ArtefactError(f"{module.where}: layer {known[columns]} is there twice")
        found[known[columns]] = module
    missing = sorted(set(layout.rows) - set(found))
    if missing:
        raise ArtefactError(
            f"layers {missing} have no module; found: {sorted(found)}, and {CONFIG_NAME} names "
            f"{list(layout.config.layer_ids)}"
        )
    return {layer: found[layer] for layer in layout.config.layer_ids}


def _specs(layout: HashLayout, layer: int, prefix: str) -> dict[str, TensorSpec]:
    config = layout.config
    width, memory = config.hidden_size, config.memory_dim
    specs = {
        TABLE: TensorSpec((layout.rows[layer], config.head_dim)),
        OFFSETS: TensorSpec((config.num_columns,), ("I64",)),
        "short_conv.conv.weight": TensorSpec((config.conv_channels, 1, config.kernel_size)),
    }
    projections = [*(f"key_projs.{g}" for g in range(config.num_gates)), "value_proj"]
    for name in projections:
        specs[f"{name}.weight"] = TensorSpec((width, memory))
        specs[f"{name}.bias"] = TensorSpec((width,))
    for norm in ("norm1", "norm2", "short_conv.norms"):
        for gate in range(config.num_gates):
            specs[f"{norm}.{gate}.weight"] = TensorSpec((width,))
    return {prefix + name: spec for name, spec in specs.items()}
