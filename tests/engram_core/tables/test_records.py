"""RecordFormat: sizes, pages and values of every packed row format."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError
from engram_core.tables.records import PACKED_DTYPES, PAGE_BYTES, RecordFormat

# rms error, relative to the rows' own size, that a format may add to bf16's
ERRORS = {"bfloat16": 0.003, "float16": 0.003, "int8": 0.01, "float8_e4m3": 0.04, "int4": 0.15}


@pytest.mark.parametrize(
    ("dtype", "row_dim", "record_bytes"),
    [("bfloat16", 64, 128), ("float16", 64, 128), ("int8", 64, 68), ("float8_e4m3", 256, 264),
     ("int4", 32, 18)],
)  # fmt: skip
def test_a_record_is_payload_and_scales(dtype, row_dim, record_bytes):
    record = RecordFormat(dtype, row_dim)
    assert record.record_bytes == record_bytes
    assert record.records_per_page == 4096 // record_bytes


@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_values_survive(dtype):
    values = torch.randn(1000, 64) * torch.logspace(-4, 2, 1000)[:, None]
    values[7] = 0
    record = RecordFormat(dtype, 64)
    read = record.unpack(record.pack(values))
    assert read.dtype == torch.bfloat16
    assert (read[7] == 0).all()
    error = (read.float() - values).norm(dim=1) / values.norm(dim=1).clamp_min(1e-9)
    assert error.max() < ERRORS[dtype] * 1.5


def test_fp8_powers_of_two_are_exact():
    values = torch.randn(500, 64).to(torch.float8_e4m3fn).float() * 2.0**-9
    record = RecordFormat("float8_e4m3", 64)
    assert torch.equal(record.unpack(record.pack(values)), values.bfloat16())


@given(st.sampled_from(PACKED_DTYPES), st.integers(1, 8), st.integers(0, 10**12))
def test_no_record_crosses_a_page(dtype, blocks, row):
    record = RecordFormat(dtype, blocks * 32)
    start = int(record.offsets(np.array([row]))[0])
    assert start // PAGE_BYTES == (start + record.record_bytes - 1) // PAGE_BYTES
    assert start + record.record_bytes <= record.table_bytes(row + 1)


@pytest.mark.parametrize(
    ("dtype", "row_dim", "text"),
    [("int2", 64, "int2.*accepted: bfloat16"), ("int4", 7, "7.*multiple of 2"),
     ("float8_e4m3", 48, "48.*multiple of 32"), ("bfloat16", 4096, "8192 bytes.*4096"),
     ("int8", 0, "0; accepted")],
)  # fmt: skip
def test_formats_that_cannot_be(dtype, row_dim, text):
    with pytest.raises(ConfigError, match=text):
        RecordFormat(dtype, row_dim)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_values_that_no_half_can_hold_are_refused(bad):
    with pytest.raises(ConfigError, match="accepted"):
        RecordFormat("float16", 2).pack(torch.tensor([[1.0, bad]]))
