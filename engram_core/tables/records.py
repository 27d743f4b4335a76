"""RecordFormat: how one row lies in a packed table, payload and scale side by side.

A row's value is bf16(payload x scale), the product taken in float32, whatever the format. Records
never cross a page, so that a row costs one read of a disk. Knows tensors and offsets; no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram_core.errors import ConfigError
from engram_core.tables import int4

PAGE_BYTES = 4096
FP8_BLOCK = 32  # columns that share a scale, as in DeepSeek-V4.1's tables
_FP8_BIAS = 127  # a stored exponent byte e stands for 2^(e-127)
_FP8_LARGEST = 448.0
_INT8_LARGEST = 127

# bits of a value, and bytes of scales in a row of d values
_PAYLOAD_BITS = {"bfloat16": 16, "float16": 16, "int8": 8, "float8_e4m3": 8, "int4": 4}
PACKED_DTYPES = tuple(_PAYLOAD_BITS)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The records of one table.

    Attributes:
        dtype: ``bfloat16``, ``float16``, ``int8`` (float32 scale per row), ``float8_e4m3`` (one
            ue8m0 scale byte per 32 columns) or ``int4`` (float16 scale per row).
        row_dim: values in a row.

    Raises:
        ConfigError: an unknown dtype, or a width that the dtype cannot pack.
    """

    dtype: str
    row_dim: int

    def __post_init__(self) -> None:
        if self.dtype not in _PAYLOAD_BITS:
            raise ConfigError(
                f"table dtype is {self.dtype!r}; accepted: {', '.join(PACKED_DTYPES)}"
            )
        step = {"int4": 2, "float8_e4m3": FP8_BLOCK}.get(self.dtype, 1)
        if self.row_dim < 1 or self.row_dim % step:
            raise ConfigError(
                f"row width is {self.row_dim}; accepted for {self.dtype}: a multiple of {step}"
            )
        if self.record_bytes > PAGE_BYTES:
            raise ConfigError(
                f"a row of {self.row_dim} values takes {self.record_bytes} bytes as {self.dtype}; "
                f"accepted: at most {PAGE_BYTES}"
            )

    @property
    def payload_bytes(self) -> int:
        """Bytes of a row's values."""
        return self.row_dim * _PAYLOAD_BITS[self.dtype] // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row's scales, which follow its values."""
        sizes = {"int8": 4, "int4": 2, "float8_e4m3": self.row_dim // FP8_BLOCK}
        return sizes.get(self.dtype, 0)

    @property
    def record_bytes(self) -> int:
        """Bytes of a row."""
        return self.payload_bytes + self.scale_bytes

    @property
    def records_per_page(self) -> int:
        """Rows in a page of 4 KiB; what is left of the page stays zero."""
        return PAGE_BYTES // self.record_bytes

    def table_bytes(self, num_rows: int) -> int:
        """Bytes of a table, whole pages."""
        return -(-num_rows // self.records_per_page) * PAGE_BYTES

    def offsets(self, row_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where records begin, in bytes from the table's start."""
        pages, places = np.divmod(row_ids, self.records_per_page)
        starts: npt.NDArray[np.int64] = pages * PAGE_BYTES + places * self.record_bytes
        return starts

    def page_span(self, start: int, stop: int) -> tuple[int, int]:
        """First and last byte (exclusive) of the pages with rows `start` to `stop` (exclusive)."""
        per_page = self.records_per_page
        return start // per_page * PAGE_BYTES, -(-stop // per_page) * PAGE_BYTES

    def records(self, pages: Bytes, start: int, stop: int) -> Bytes:
        """Records ``[stop - start, record_bytes]`` out of the bytes of `page_span`."""
        per_page = self.records_per_page
        whole = pages.reshape(-1, PAGE_BYTES)[:, : per_page * self.record_bytes]
        skipped = start % per_page
        return whole.reshape(-1, self.record_bytes)[skipped : skipped + stop - start]

    def pack(self, values: torch.Tensor) -> Bytes:
        """Records uint8 ``[n, record_bytes]`` of rows ``[n, row_dim]``.

        Raises:
            ConfigError: a value is not finite, or too large for the format.
        """
        if not bool(torch.isfinite(values).all()):
            raise ConfigError("a row holds NaN or infinity; accepted: finite values")
        parts = _PACKERS[self.dtype](values.contiguous())
        return np.concatenate([_as_bytes(part) for part in parts], axis=1)

    def unpack(self, records: Bytes) -> torch.Tensor:
        """The rows' values, bf16 ``[n, row_dim]``: the definition that every tier is held to."""
        payload = np.ascontiguousarray(records[:, : self.payload_bytes])
        scales = np.ascontiguousarray(records[:, self.payload_bytes :])
        values: torch.Tensor = _UNPACKERS[self.dtype](payload, scales)
        return values.to(torch.bfloat16)

    def pages(self, records: Bytes) -> Bytes:
        """Records laid out in pages: uint8, flat; only a table's last call may end mid-page."""
        per_page = self.records_per_page
        num_pages = -(-len(records) // per_page)
        out = np.zeros((num_pages, PAGE_BYTES), np.uint8)
        filled = np.zeros((num_pages * per_page, self.record_bytes), np.uint8)
        filled[: len(records)] = records
        out[:, : per_page * self.record_bytes] = filled.reshape(
            num_pages, per_page * self.record_bytes
        )
        return out.reshape(-1)


def _as_bytes(part: torch.Tensor) -> Bytes:
    """A contiguous tensor ``[n, k]`` as its bytes, ``[n, bytes]``."""
    flat: Bytes = part.contiguous().view(torch.uint8).numpy()
    return flat.reshape(len(part), part.shape[1] * part.itemsize)


def _pack_int8(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scales = values.float().abs().amax(1, keepdim=True) / _INT8_LARGEST  # [n, 1]
    codes = values.float() / scales.where(scales > 0, torch.ones(()))
    return codes.round().clamp(-_INT8_LARGEST, _INT8_LARGEST).to(torch.int8), scales


def _pack_fp8(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    blocks = values.float().view(len(values), -1, FP8_BLOCK)  # [n, blocks, 32]
    largest = blocks.abs().amax(2) / _FP8_LARGEST
    smallest = torch.finfo(torch.float32).smallest_normal
    exponents = largest.clamp_min(smallest).log2().ceil()  # [n, blocks]
    payload = (blocks / exponents.exp2()[..., None]).to(torch.float8_e4m3fn).flatten(1)
    return payload, (exponents + _FP8_BIAS).to(torch.uint8)


def _pack_int4(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    codes, scales = int4.quantise(values)
    return codes, scales[:, None]


def _pack_half(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    half = values.half()
    if not bool(torch.isfinite(half).all()):
        raise ConfigError("a row holds values beyond 65504; accepted for float16: smaller ones")
    return (half,)


def _unpack_int8(payload: Bytes, scales: Bytes) -> torch.Tensor:
    codes = torch.from_numpy(payload.view(np.int8)).float()
    return codes * torch.from_numpy(scales.view(np.float32))


def _unpack_fp8(payload: Bytes, scales: Bytes) -> torch.Tensor:
    codes = torch.from_numpy(payload).view(torch.float8_e4m3fn).float()
    powers = torch.from_numpy(scale_values()[scales])  # [n, blocks]
    blocks = codes.view(len(codes), -1, FP8_BLOCK) * powers[..., None]
    return blocks.flatten(1)


def _unpack_int4(payload: Bytes, scales: Bytes) -> torch.Tensor:
    stored = torch.from_numpy(scales.view(np.float16).reshape(-1))
    return int4.dequantise(torch.from_numpy(payload), stored)


@cache
def scale_values() -> npt.NDArray[np.float32]:
    """The value of each ue8m0 byte, float32 ``[256]``; byte 255 is no number."""
    values = np.full(256, np.nan, np.float32)
    values[:255] = np.ldexp(np.float32(1), np.arange(255) - _FP8_BIAS)
    return values


_PACKERS: dict[str, Any] = {
    "bfloat16": lambda values: (values.to(torch.bfloat16),),
    "float16": _pack_half,
    "int8": _pack_int8,
    "float8_e4m3": _pack_fp8,
    "int4": _pack_int4,
}
_UNPACKERS: dict[str, Any] = {
    "bfloat16": lambda payload, _: torch.from_numpy(payload).view(torch.bfloat16),
    "float16": lambda payload, _: torch.from_numpy(payload).view(torch.float16),
    "int8": _unpack_int8,
    "float8_e4m3": _unpack_fp8,
    "int4": _unpack_int4,
}
