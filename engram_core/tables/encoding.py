"""How the rows of a table lie in a safetensors file, for each storage and dtype.

dense:  ``rows`` [R, d] in float32, bfloat16 or float16.
sparse: ``row_ids`` int32 [k], and either ``rows`` [k, d] in bfloat16, or ``codes`` uint8 [k, d/2]
        with ``scales`` float16 [k] (dtype int4).
packed: see `packed_file`; not read or written here.
Knows tensors by name; reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.tables.int4 import dequantise, quantise
from engram_core.tables.records import PACKED_DTYPES
from engram_core.tables.rows import DenseRows, SparseRows, TableRows

DENSE_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
PACKED = "packed"
DTYPES = {"dense": (*DENSE_DTYPES,), "sparse": ("bfloat16", "int4"), PACKED: PACKED_DTYPES}
INT4_LAYOUT = {"row_ids": torch.int32, "codes": torch.uint8, "scales": torch.float16}


def storage_of(rows: TableRows) -> str:
    """``"dense"`` or ``"sparse"``."""
    return "dense" if isinstance(rows, DenseRows) else "sparse"


def encode(rows: TableRows, dtype: str) -> dict[str, torch.Tensor]:
    """The tensors of a table file. Raises ConfigError for a dtype the storage does not have."""
    accepted = DTYPES[storage_of(rows)]
    if dtype not in accepted:
        raise ConfigError(f"table dtype is {dtype!r}; accepted: {', '.join(accepted)}")
    if isinstance(rows, DenseRows):
        return {"rows": rows.values.to(DENSE_DTYPES[dtype]).contiguous()}
    if rows.num_rows > np.iinfo(np.int32).max:
        raise ConfigError(f"a sparse table of {rows.num_rows} rows; accepted: below 2^31")
    row_ids = torch.from_numpy(rows.row_ids.astype(np.int32))
    if dtype == "int4":
        codes, scales = quantise(rows.values)
        return {"row_ids": row_ids, "codes": codes, "scales": scales}
    return {"row_ids": row_ids, "rows": rows.values.bfloat16().contiguous()}


def decode(
    tensors: Mapping[str, torch.Tensor],
    *,
    storage: str,
    dtype: str,
    shape: tuple[int, int],
    where: str,
) -> TableRows:
    """Read what `encode` wrote.

    Args:
        tensors: the file's tensors.
        storage: as the manifest says.
        dtype: as the manifest says.
        shape: rows and row width that the layout asks for.
        where: the file's name, for errors.

    Raises:
        MismatchError: dtype, row count or width differ. ArtefactError: tensors are missing, or
            row ids are not ascending and inside the table.
    """
    num_rows, row_dim = shape
    _check_tensors(tensors, _expected_dtypes(storage, dtype), where)
    if storage == "dense":
        _check_shape(tensors["rows"], (num_rows, row_dim), where)
        return DenseRows(tensors["rows"])
    values = dequantise(tensors["codes"], tensors["scales"]) if dtype == "int4" else tensors["rows"]
    _check_shape(values, (len(tensors["row_ids"]), row_dim), where)
    try:
        return SparseRows(tensors["row_ids"].numpy().astype(np.int64), values, num_rows)
    except ConfigError as error:
        raise ArtefactError(f"{where}: {error}") from None


def _expected_dtypes(storage: str, dtype: str) -> dict[str, torch.dtype]:
    if storage == "dense":
        return {"rows": DENSE_DTYPES[dtype]}
    if dtype == "int4":
        return INT4_LAYOUT
    return {"row_ids": torch.int32, "rows": DENSE_DTYPES[dtype]}


def _check_tensors(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.dtype], where: str
) -> None:
    found = {name: tensor.dtype for name, tensor in tensors.items()}
    if found != expected:
        raise MismatchError(
            "tensors", expected=_listed(expected), found=_listed(found), where=where
        )


def _check_shape(values: torch.Tensor, shape: tuple[int, int], where: str) -> None:
    if values.dim() != 2 or tuple(values.shape) != shape:
        raise MismatchError(
            "table rows and width", expected=shape, found=tuple(values.shape), where=where
        )


def _listed(dtypes: Mapping[str, torch.dtype]) -> str:
    names = [f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in dtypes.items()]
    return ", ".join(sorted(names)) or "none"
