"""TableReader: a table that is read a slice at a time, whatever format it lies in."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import torch

TableDtype = Literal["float32", "bfloat16", "float16", "float8_e4m3"]


class TableReader(Protocol):
    """The rows of one layer. Slices are read from the file each time; nothing is kept."""

    @property
    def num_rows(self) -> int:
        """Rows of the table."""

    @property
    def row_dim(self) -> int:
        """Values in a row."""

    @property
    def dtype(self) -> TableDtype:
        """What the file stores."""

    def read(self, start: int, stop: int) -> torch.Tensor:
        """The values of rows `start` to `stop` (exclusive): bfloat16 ``[stop - start, row_dim]``.

        Raises:
            IdRangeError: there are no such rows. ArtefactError: the file cannot be read.
        """


@runtime_checkable
class RecordReader(TableReader, Protocol):
    """A table of ``float8_e4m3``, whose stored bytes can be had as they are."""

    def read_records(self, start: int, stop: int) -> torch.Tensor:
        """Rows as stored: uint8 ``[stop - start, row_dim + row_dim/32]``.

        A record is the payload's bytes, then one power-of-two scale byte per 32 values.

        Raises:
            IdRangeError: there are no such rows. ArtefactError: the file cannot be read.
        """
