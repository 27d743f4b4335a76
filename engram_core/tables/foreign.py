"""Opens memories that others have published, whichever of the known formats they are in.

The format is told by the tensors' names, never by a file's or folder's name. Nothing is ever
unpickled. Knows the formats by their marks and leaves reading to their modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engram_core.errors import ArtefactError
from engram_core.tables import deepseek_v41, demo_state, peft
from engram_core.tables.imported import ClassMaps, ImportedMemory
from engram_core.tables.json_file import read_json
from engram_core.tables.manifest import MANIFEST_NAME
from engram_core.tables.safetensors_file import SafetensorsFile
from engram_core.tables.tensor_source import INDEX_NAME, SUFFIX, TensorSource, read_index

CONFIG_NAME = "config.json"
PICKLED = frozenset({".pt", ".pth", ".bin", ".ckpt", ".pkl"})
ACCEPTED = (
    "accepted: safetensors of the January 2026 demo's modules, a DeepSeek-V4.1 checkpoint, or an "
    "engram-peft 1.2 adapter, each with its config.json"
)


def open_foreign(
    path: Path,
    *,
    tokenizer: Any = None,
    config: Mapping[str, Any] | None = None,
    cache_dir: Path | None = None,
) -> ImportedMemory:
    """Read a memory in somebody else's format; tables are opened, not loaded.

    Args:
        path: a folder, or one safetensors file.
        tokenizer: the fast tokenizer it was trained with, or its ready class map
            (`TokenCompressor`). Only the demo's format cannot be read without.
        config: takes the place of the ``config.json`` beside the tensors.
        cache_dir: folder of built class maps.

    Raises:
        ArtefactError: it is in no known format, or not what its format asks for.
        MismatchError: the same, where two values can be compared; it names both.
        ConfigError: a key of the configuration is unknown or out of range, or the tokenizer is
            missing.
    """
    folder = path if path.is_dir() else path.parent
    names = _tensor_names(path)
    found = _format(names)
    if found is None:
        raise ArtefactError(f"{path.name} holds no Engram memory that is known here; {ACCEPTED}")
    data = read_json(folder / CONFIG_NAME) if config is None else config
    maps = ClassMaps(tokenizer, cache_dir)
    if found == deepseek_v41.FORMAT:
        return deepseek_v41.read_v41(_v41_source(path), data, maps)
    files = _files(path)
    if found == demo_state.FORMAT:
        return demo_state.read_demo(files, data, maps)
    if len(files) != 1:
        raise ArtefactError(
            f"{folder.name} holds {len(files)} safetensors files; accepted: "
            f"{peft.ADAPTER_NAME} alone"
        )
    peft.refuse_lora(folder)
    return peft.read_peft(TensorSource.of_file(files[0]), data, maps)


def _format(names: Sequence[str]) -> str | None:
    """The one format whose mark the names bear."""
    found = {
        form
        for name in names
        for form, is_one in (
            (deepseek_v41.FORMAT, name.endswith(deepseek_v41.TABLE_SUFFIX)),
            (peft.FORMAT, name.endswith(peft.MARK)),
            (demo_state.FORMAT, _last_two(name) == demo_state.MARK),
        )
        if is_one
    }
    if len(found) > 1:
        raise ArtefactError(f"tensors of several formats: {', '.join(sorted(found))}; {ACCEPTED}")
    return next(iter(found), None)


def _last_two(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _tensor_names(path: Path) -> list[str]:
    if path.is_dir() and (path / INDEX_NAME).exists():
        return [*read_index(path)]
    return [name for file in _files(path) for name in file.entries]


def _v41_source(path: Path) -> TensorSource:
    if path.is_dir() and (path / INDEX_NAME).exists():
        return TensorSource.of_index(path, lambda name: deepseek_v41.MARK in name)
    files: dict[str, SafetensorsFile] = {}
    for file in _files(path):
        for name in filter(lambda name: deepseek_v41.MARK in name, file.entries):
            if name in files:
                raise ArtefactError(f"{name} is both in {files[name].name} and in {file.name}")
            files[name] = file
    return TensorSource(path.name, files)


def _files(path: Path) -> list[SafetensorsFile]:
    """The safetensors files of a folder, or the one that `path` is."""
    if not path.is_dir():
        if path.suffix in PICKLED:
            raise ArtefactError(f"{path.name} is a pickled file, which is never read; {ACCEPTED}")
        return [SafetensorsFile(path)]
    if (path / MANIFEST_NAME).exists():
        raise ArtefactError(
            f"{path.name} is a native artefact (it has a {MANIFEST_NAME}) and needs no import; "
            f"{ACCEPTED}"
        )
    found = sorted(each for each in path.iterdir() if each.suffix == SUFFIX)
    if not found:
        pickled = sorted(each.name for each in path.iterdir() if each.suffix in PICKLED)
        reason = f"only {pickled[0]}, which is never unpickled" if pickled else "no safetensors"
        raise ArtefactError(f"{path.name} holds {reason}; {ACCEPTED}")
    return [SafetensorsFile(each) for each in found]
