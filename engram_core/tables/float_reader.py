"""FloatReader: a table stored as plain numbers in a safetensors matrix."""

from __future__ import annotations

import torch

from engram_core.tables.reader import TableDtype
from engram_core.tables.tensor_source import TensorSource

TABLE_DTYPES: dict[str, TableDtype] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class FloatReader:
    """Reads the matrix `name` ``[num_rows, row_dim]`` (see `reader.TableReader`)."""

    def __init__(self, source: TensorSource, name: str) -> None:
        self._source, self._name = source, name
        entry = source.entry(name)
        self.num_rows, self.row_dim = entry.shape
        self.dtype = TABLE_DTYPES[entry.dtype]

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The values of rows `start` to `stop`, rounded to bfloat16."""
        return self._source.read_rows(self._name, start, stop).bfloat16()
