"""TensorSource: the tensors of one safetensors file or of a checkpoint's several shards.

Finds, checks and reads tensors by name. Knows no format of a memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from engram_core.errors import ArtefactError, MismatchError
from engram_core.tables.json_file import read_json
from engram_core.tables.record_part import RecordPart
from engram_core.tables.safetensors_file import SafetensorsFile, TensorEntry

SUFFIX = ".safetensors"
INDEX_NAME = "model.safetensors.index.json"
FLOAT_DTYPES = ("F32", "BF16", "F16")


class TensorSpec(NamedTuple):
    """What a tensor must be."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = FLOAT_DTYPES


class TensorSource:
    """Tensors by name, whichever file they lie in.

    Args:
        name: of the file or folder, for errors.
        files: the opened file of each tensor.
    """

    def __init__(self, name: str, files: Mapping[str, SafetensorsFile]) -> None:
        self.name = name
        self._files = dict(files)

    @classmethod
    def of_file(cls, file: SafetensorsFile, prefix: str = "") -> Self:
        """The tensors of one file whose names begin with `prefix`."""
        return cls(file.name, {k: file for k in file.entries if k.startswith(prefix)})

    @classmethod
    def of_index(cls, folder: Path, is_wanted: Callable[[str], bool]) -> Self:
        """The wanted tensors of a sharded checkpoint; other shards need not be there.

        Raises:
            ArtefactError: the index or a shard is missing or damaged, or they contradict.
        """
        places = read_index(folder)
        shards = {name for key, name in places.items() if is_wanted(key)}
        opened = {name: SafetensorsFile(folder / name) for name in sorted(shards)}
        files: dict[str, SafetensorsFile] = {}
        for name, file in opened.items():
            for key in filter(is_wanted, file.entries):
                if places.get(key) != name:
                    what = f"file of {key}"
                    raise MismatchError(
                        what, expected=places.get(key), found=name, where=INDEX_NAME
                    )
                files[key] = file
        lost = sorted(filter(is_wanted, places.keys() - files.keys()))
        if lost:
            raise ArtefactError(f"{places[lost[0]]} lacks {listed(lost)}, which {INDEX_NAME} names")
        return cls(folder.name, files)

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._files)

    def entry(self, name: str) -> TensorEntry:
        """What the header says of a tensor."""
        return self._files[name].entries[name]

    def num_rows(self, name: str) -> int:
        """A tensor's first dimension, 0 where it has none."""
        return (*self.entry(name).shape, 0)[0]

    def read(self, name: str) -> torch.Tensor:
        """A whole tensor."""
        return self._files[name].read(name)

    def read_alike(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Whole tensors that go into one module.

        Raises:
            MismatchError: they have different dtypes.
        """
        found = {name: self.read(name) for name in sorted(names)}
        first = next(iter(found), "")
        for name, tensor in found.items():
            if tensor.dtype != found[first].dtype:
                what, dtype = f"dtype of {name}", self.entry(first).dtype
                where = self._files[name].name
                raise MismatchError(
                    what, expected=f"{dtype}, as {first}", found=self.entry(name).dtype, where=where
                )
        return found

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` (exclusive) of a matrix."""
        return self._files[name].read_rows(name, start, stop)

    def row_part(self, name: str) -> RecordPart:
        """Where the rows of a matrix lie."""
        return self._files[name].row_part(name)

    def check(self, expected: Mapping[str, TensorSpec]) -> None:
        """Refuse anything but exactly these tensors.

        Raises:
            ArtefactError: tensors are missing or unexpected.
            MismatchError: a tensor has another dtype or shape; it names both.
        """
        self.check_names(expected.keys())
        for name, (shape, dtypes) in expected.items():
            entry, where = self.entry(name), self._files[name].name
            if entry.dtype not in dtypes:
                wanted = " or ".join(dtypes)
                what = f"dtype of {name}"
                raise MismatchError(what, expected=wanted, found=entry.dtype, where=where)
            if entry.shape != shape:
                raise MismatchError(
                    f"shape of {name}", expected=shape, found=entry.shape, where=where
                )

    def check_names(self, expected: Any) -> None:
        """Refuse missing and unexpected tensors. Raises ArtefactError."""
        missing, unexpected = sorted(expected - self.names), sorted(self.names - expected)
        faults = [
            f"{fault} {listed(names)}"
            for fault, names in (("it lacks", missing), ("unexpected are", unexpected))
            if names
        ]
        if faults:
            raise ArtefactError(
                f"{self.name} has other tensors than its configuration asks for: "
                f"{'; '.join(faults)}"
            )


def read_index(folder: Path) -> dict[str, str]:
    """The file of every tensor, as a checkpoint's index says. Raises ArtefactError."""
    places = read_json(folder / INDEX_NAME).get("weight_map")
    if not isinstance(places, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in places.values()
    ):
        raise ArtefactError(f"{INDEX_NAME} is not valid: weight_map; accepted: plain file names")
    return places


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names for a sentence, the first few of many."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
