"""SafetensorsFile: a safetensors file read by byte ranges, never as a whole.

Tables of hundreds of gigabytes are read a slice at a time, and narrow dtypes bit by bit. The
header is believed only where it agrees with itself and with the file's size. Knows no names of
tensors. (Format: an 8-byte little-endian length, a JSON header, the tensors' bytes.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from engram_core.errors import ArtefactError, IdRangeError, MismatchError
from engram_core.tables.file_state import FileState
from engram_core.tables.record_part import RecordPart

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # what the safetensors library accepts
METADATA = "__metadata__"

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What the header says of one tensor.

    Attributes:
        dtype: as the format spells it, such as ``F8_E4M3``.
        start, stop: its bytes, counted from the file's beginning.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """An opened header; tensors are read on demand.

    Attributes:
        name: the file's name.
        entries: what the header says, by tensor name.
        state: of the file when its header was read.

    Raises:
        ArtefactError: the file is missing, or is no safetensors file.
        MismatchError: tensors and file cover different bytes.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        header, start, self.state = self._read_header()
        self.entries = {
            key: self._entry(key, value, start) for key, value in header.items() if key != METADATA
        }
        self._check_spans(start, self.state.num_bytes)

    def read(self, name: str) -> torch.Tensor:
        """A whole tensor. Raises ArtefactError when the file has become shorter."""
        entry = self.entries[name]
        raw = self._bytes(entry.start, entry.stop)
        return raw.view(DTYPES[entry.dtype]).view(entry.shape)

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` (exclusive) of a matrix: ``[stop - start, columns]``.

        Raises:
            IdRangeError: there are no such rows. ArtefactError: the file has become shorter.
        """
        entry = self.entries[name]
        num_rows, columns = entry.shape
        if not 0 <= start <= stop <= num_rows:
            raise IdRangeError(f"rows {start} to {stop}; accepted: within 0 to {num_rows}")
        row_bytes = (entry.stop - entry.start) // max(num_rows, 1)
        first = entry.start
        raw = self._bytes(first + start * row_bytes, first + stop * row_bytes)
        return raw.view(DTYPES[entry.dtype]).view(stop - start, columns)

    def row_part(self, name: str) -> RecordPart:
        """Where the rows of a matrix lie, one behind the other."""
        entry = self.entries[name]
        row_bytes = (entry.stop - entry.start) // max(entry.shape[0], 1)
        where = (self._path, self.state.num_bytes, entry.start)
        return RecordPart(*where, row_bytes, 1, row_bytes, self.state)

    def _bytes(self, start: int, stop: int) -> torch.Tensor:
        buffer = torch.empty(stop - start, dtype=torch.uint8)
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(start)
                found = _fill(file, buffer.numpy().data)
        except OSError as error:
            raise ArtefactError(f"{self.name} cannot be read: {error.strerror}") from None
        if found != len(buffer):
            raise MismatchError("bytes read", expected=len(buffer), found=found, where=self.name)
        return buffer

    def _read_header(self) -> tuple[dict[str, Any], int, FileState]:
        """The header, where tensors begin, and the file's state."""
        try:
            with self._path.open("rb") as file:
                state = FileState.of(os.fstat(file.fileno()))
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
                most = min(state.num_bytes - LENGTH_BYTES, MAX_HEADER_BYTES)
                if length > most:
                    raise self._no_safetensors(f"a header of {length} bytes, accepted: {most}")
                header = json.loads(file.read(length), object_pairs_hook=_without_doubles)
        except OSError as error:
            raise ArtefactError(f"{self.name} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise self._no_safetensors(str(error)) from None
        if not isinstance(header, dict):
            raise self._no_safetensors("its header is no object")
        return header, LENGTH_BYTES + length, state

    def _entry(self, name: str, value: Any, first: int) -> TensorEntry:
        try:
            dtype, shape, (start, stop) = value["dtype"], value["shape"], value["data_offsets"]
            numbers = [*shape, start, stop]
        except (TypeError, KeyError, ValueError):
            raise self._no_safetensors(f"tensor {name!r} is {value!r}") from None
        if not isinstance(dtype, str) or any(type(n) is not int or n < 0 for n in numbers):
            raise self._no_safetensors(f"tensor {name!r} is {value!r}")
        if dtype in DTYPES:  # others may be narrower than a byte; nobody here reads them
            expected = prod(shape) * DTYPES[dtype].itemsize
            if stop - start != expected:
                what = f"bytes of {name}"
                raise MismatchError(what, expected=expected, found=stop - start, where=self.name)
        return TensorEntry(dtype, tuple(shape), first + start, first + stop)

    def _check_spans(self, start: int, size: int) -> None:
        """The tensors must cover everything behind the header, each byte once."""
        reached = start
        for name, entry in sorted(self.entries.items(), key=lambda item: item[1].start):
            if entry.start != reached or entry.stop < entry.start:
                what = f"first byte of {name}"
                raise MismatchError(what, expected=reached, found=entry.start, where=self.name)
            reached = entry.stop
        if reached != size:
            raise MismatchError("file size in bytes", expected=reached, found=size, where=self.name)

    def _no_safetensors(self, reason: str) -> ArtefactError:
        return ArtefactError(f"{self.name} is no safetensors file: {reason}")


def _fill(file: Any, view: memoryview) -> int:
    """Bytes read into `view`: one call may read less than asked for."""
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            break
        done += count
    return done


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in its header")
    return found
