"""HotList: the file in which a hot cache's rows outlast the process.

A hint and no more: rows come from the table whatever the list says, so a list is compared with the
table's shape and not with its content.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from engram_core.errors import ArtefactError, IdRangeError, MismatchError
from engram_core.store.base import RowIds
from engram_core.store.kernels import check_ids, count_unique

_FORMAT = "engram-hot-list-1"


@dataclass(frozen=True, slots=True)
class HotList:
    """Hot rows of one table.

    Attributes:
        num_rows, row_dim: shape of the table.
        row_ids: int64 ``[k]``, each once, hottest first.
        counts: uint8 ``[k]``, their counters.
    """

    num_rows: int
    row_dim: int
    row_ids: RowIds
    counts: npt.NDArray[np.uint8]


def write_hot_list(path: Path, hot: HotList) -> None:
    """Write a list as safetensors; readers see the whole file, or what was there before."""
    facts = {"format": _FORMAT, "num_rows": str(hot.num_rows), "row_dim": str(hot.row_dim)}
    blob = save({"row_ids": hot.row_ids, "counts": hot.counts}, metadata=facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as new:
        try:
            new.write(blob)
            new.flush()
            os.fsync(new.fileno())
            os.replace(new.name, path)
        except BaseException:
            os.unlink(new.name)
            raise


def read_hot_list(path: Path, num_rows: int, row_dim: int) -> HotList:
    """Read a list that was saved for a table of this shape.

    Raises:
        ArtefactError: the file is missing, damaged or something else.
        MismatchError: it belongs to a table of another shape.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            _check_facts(path, facts, num_rows, row_dim)
            hot = HotList(num_rows, row_dim, file.get_tensor("row_ids"), file.get_tensor("counts"))
    except FileNotFoundError:
        raise ArtefactError(f"{path.name} does not exist; accepted: a saved list") from None
    except (OSError, SafetensorError) as error:
        raise ArtefactError(f"{path.name} is no readable list of hot rows") from error
    _check_rows(path, hot)
    return hot


def _check_facts(path: Path, facts: dict[str, str], num_rows: int, row_dim: int) -> None:
    if facts.get("format") != _FORMAT:
        raise ArtefactError(
            f"{path.name} has format {facts.get('format')!r}; accepted: {_FORMAT!r}, "
            "as a hot cache saves it"
        )
    found = (facts.get("num_rows"), facts.get("row_dim"))
    if found != (str(num_rows), str(row_dim)):
        raise MismatchError(
            "shape of the table whose hot rows are listed",
            expected=f"{num_rows} rows of {row_dim}",
            found=f"{found[0]} rows of {found[1]}",
            where=path.name,
        )


def _check_rows(path: Path, hot: HotList) -> None:
    ids, counts = hot.row_ids, hot.counts
    is_list = ids.dtype == np.int64 and counts.dtype == np.uint8 and ids.ndim == 1
    if not is_list or ids.shape != counts.shape or count_unique(ids) != ids.size:
        raise ArtefactError(
            f"{path.name} holds {ids.dtype}{list(ids.shape)} rows and {counts.dtype}"
            f"{list(counts.shape)} counters; accepted: different int64 ids with a uint8 each"
        )
    try:
        check_ids(ids, hot.num_rows)
    except IdRangeError as error:
        raise ArtefactError(f"{path.name}: {error}") from None
