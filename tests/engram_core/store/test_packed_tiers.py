"""PackedTier and DiskTier: the formats' own values, whatever reads them; damage is an error."""

import os

import numpy as np
import pytest
import torch

from benchmarks import page_cache
from engram_core import compiled
from engram_core.errors import ArtefactError, ConfigError, IdRangeError, MismatchError, TierError
from engram_core.store.disk import DiskTier
from engram_core.store.packed import PackedTier
from engram_core.store.table_memory import TableMemory, verify
from engram_core.tables.manifest import FileRecord
from engram_core.tables.packed_file import PackedFile, sum_of_chunks
from engram_core.tables.packed_writer import PackedWriter
from engram_core.tables.records import PACKED_DTYPES, RecordFormat

NUM_ROWS = 2000


@pytest.fixture(params=["compiled", "plain"])
def kernels(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(compiled, "kernels", lambda: None)
        monkeypatch.setattr(compiled, "load_disk_reads", lambda: None)
    else:
        assert compiled.load()


def table(tmp_path, dtype="int8", row_dim=64):
    record = RecordFormat(dtype, row_dim)
    values = torch.randn(NUM_ROWS, row_dim, generator=torch.Generator().manual_seed(0))
    with (tmp_path / "t").open("wb") as file:
        writer = PackedWriter(file, record, NUM_ROWS)
        writer.append(values)
        num_bytes, chunks = writer.finish()
    file_record = FileRecord(num_bytes, sum_of_chunks(chunks), chunks)
    return PackedFile.open(tmp_path / "t"), file_record, record.unpack(record.pack(values))


@pytest.mark.parametrize("row_dim", [32, 64, 96])
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_every_tier_gives_the_defined_bits(tmp_path, kernels, dtype, row_dim):
    file, record, expected = table(tmp_path, dtype, row_dim)
    tiers = [PackedTier(TableMemory(file, record).data, file.format, NUM_ROWS), DiskTier(file)]
    for count in (0, 1, 16, 9000):
        ids = np.random.default_rng(count).integers(0, NUM_ROWS, count)
        for tier in tiers:
            short = torch.empty(count, row_dim, dtype=torch.bfloat16)
            wide = torch.empty(count, row_dim)
            report = tier.gather(ids, short)
            tier.gather(ids, wide)
            assert torch.equal(short, expected[torch.from_numpy(ids)])
            assert torch.equal(wide, short.float())
            assert report.rows_by_tier == {tier.name: count}


def test_the_disk_is_asked_once_for_each_row(tmp_path):
    file, _, _ = table(tmp_path)
    ids = np.array([5, 5, 9, 5])
    report = DiskTier(file).gather(ids, torch.empty(4, 64))
    assert report.transferred_bytes == 2 * file.format.record_bytes


def test_forgotten_rows_leave_the_page_cache(tmp_path):
    file, _, _ = table(tmp_path)
    tier = DiskTier(file)
    page_cache.drop([file.path])
    if page_cache.resident_share(file.path) == 1:
        pytest.skip("this file system keeps its files in memory")
    rows = np.arange(NUM_ROWS)
    tier.gather(rows, torch.empty(NUM_ROWS, 64, dtype=torch.bfloat16))
    assert page_cache.resident_share(file.path) > 0.9
    tier.forget(rows[: NUM_ROWS // 2])
    assert 0.4 < page_cache.resident_share(file.path) < 0.6
    tier.forget(rows)
    assert page_cache.resident_share(file.path) < 0.1


@pytest.mark.parametrize("bad", [-1, NUM_ROWS, 2**40])
def test_a_bad_id_raises_and_leaves_the_output_alone(tmp_path, bad):
    file, record, _ = table(tmp_path)
    for tier in (PackedTier(TableMemory(file, record).data, file.format, NUM_ROWS), DiskTier(file)):
        out = torch.full((2, 64), 7.0)
        with pytest.raises(IdRangeError):
            tier.gather(np.array([0, bad]), out)
        assert (out == 7).all()


@pytest.mark.parametrize("change", ["truncate", "overwrite"])
def test_a_table_changed_while_it_is_served_is_an_error_and_never_a_wrong_row(
    tmp_path, kernels, change
):
    file, record, expected = table(tmp_path)
    disk, dram = DiskTier(file), PackedTier(TableMemory(file, record).data, file.format, NUM_ROWS)
    os.utime(file.path, ns=(0, 0))  # a clock's tick cannot hide the change
    disk = DiskTier(file)
    if change == "truncate":
        os.truncate(file.path, 8192)
    else:
        with file.path.open("r+b") as rewritten:
            rewritten.seek(file.data_offset)
            rewritten.write(b"\x55" * 8192)
    ids, out = np.arange(NUM_ROWS), torch.empty(NUM_ROWS, 64, dtype=torch.bfloat16)
    with pytest.raises(TierError, match=r"^t(:| was)"):
        disk.gather(ids, out)
    dram.gather(ids, out)
    assert torch.equal(out, expected)


def test_a_replaced_file_keeps_serving_the_old_rows(tmp_path):
    file, _, expected = table(tmp_path)
    tier = DiskTier(file)
    (tmp_path / "new").write_bytes(b"x" * file.file_bytes)
    os.replace(tmp_path / "new", file.path)
    out = torch.empty(NUM_ROWS, 64, dtype=torch.bfloat16)
    tier.gather(np.arange(NUM_ROWS), out)
    assert torch.equal(out, expected)


def test_a_flipped_byte_is_found(tmp_path):
    file, record, _ = table(tmp_path)
    blob = bytearray(file.path.read_bytes())
    blob[-1] ^= 1
    file.path.write_bytes(blob)
    for check in (lambda: verify(file, record), lambda: TableMemory(file, record)):
        with pytest.raises(MismatchError, match="t: sha256 of chunk 0"):
            check()


def test_a_file_that_ends_while_it_is_read(tmp_path):
    file, record, _ = table(tmp_path)
    os.truncate(file.path, 5000)
    with pytest.raises(ArtefactError, match="t ends at byte 5000"):
        verify(file, record)


def test_wrong_sizes_are_refused(tmp_path):
    file, record, _ = table(tmp_path)
    with pytest.raises(ConfigError, match="accepted: "):
        PackedTier(TableMemory(file, record).data[:-1], file.format, NUM_ROWS)
    os.remove(file.path)
    with pytest.raises(ArtefactError, match="cannot be read"):
        DiskTier(file)
