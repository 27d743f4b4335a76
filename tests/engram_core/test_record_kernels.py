"""The record kernels' values, code by code."""

import numpy as np
import pytest
import torch

from engram_core import compiled
from engram_core.store.record_reader import RecordReader
from engram_core.tables.records import RecordFormat


@pytest.fixture(autouse=True, scope="module")
def loaded():
    assert compiled.load()


def read(records, record, row_ids):
    out = torch.empty(len(row_ids), record.row_dim, dtype=torch.bfloat16)
    RecordReader(records.reshape(-1), record, paged=False).read(row_ids, out)
    return out.view(torch.int16).numpy()


def test_every_fp8_code_with_every_scale_is_what_the_format_defines():
    """All 65,536 pairs, the 255 that is no scale and both codes that are no number included."""
    record = RecordFormat("float8_e4m3", 256)
    records = np.empty((256, record.record_bytes), np.uint8)
    records[:, :256] = np.arange(256)
    records[:, 256:] = np.arange(256)[:, None]
    with np.errstate(invalid="ignore"):
        expected = record.unpack(records)
    found = read(records, record, np.arange(256))
    is_number = ~expected.isnan().numpy()
    assert is_number.sum() == 255 * 254
    np.testing.assert_array_equal(found[is_number], expected.view(torch.int16).numpy()[is_number])
    assert (found[~is_number] & 0x7FFF == 0x7FC0).all()


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3", "int4"])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 1023, 1024, 1025, 5000])
def test_rows_read_in_pieces_are_the_rows(dtype, count):
    record = RecordFormat(dtype, 96)
    values = torch.randn(777, 96, generator=torch.Generator().manual_seed(1))
    records = record.pack(values)
    ids = np.random.default_rng(count).integers(0, 777, count)
    expected = record.unpack(records)[torch.from_numpy(ids)].view(torch.int16).numpy()
    np.testing.assert_array_equal(read(records, record, ids), expected)
