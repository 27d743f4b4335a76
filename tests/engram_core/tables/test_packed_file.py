"""PackedFile: written once, read by anybody, refused when anything is off."""

import io
import json
import struct

import pytest
import torch
from safetensors.torch import load_file

from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.tables import packed_writer
from engram_core.tables.packed_file import PackedFile
from engram_core.tables.packed_writer import PackedWriter
from engram_core.tables.records import RecordFormat


def written(path, values, dtype="int8"):
    with path.open("wb") as file:
        writer = PackedWriter(file, RecordFormat(dtype, values.shape[1]), len(values))
        for piece in values.split(777):
            writer.append(piece)
        return writer.finish()


@pytest.mark.parametrize("count", [1, 60, 61, 5000])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3"])
def test_rows_come_back(tmp_path, count, dtype):
    values = torch.randn(count, 64)
    num_bytes, _ = written(tmp_path / "t", values, dtype)
    opened = PackedFile.open(tmp_path / "t")
    assert opened.file_bytes == num_bytes == (tmp_path / "t").stat().st_size
    assert (opened.num_rows, opened.format) == (count, RecordFormat(dtype, 64))
    expected = opened.format.unpack(opened.format.pack(values))
    assert torch.equal(opened.read(0, count), expected)
    assert torch.equal(opened.read(count // 2, count), expected[count // 2 :])


def test_it_is_a_safetensors_file_on_page_borders(tmp_path):
    written(tmp_path / "t", torch.randn(100, 64))
    opened = PackedFile.open(tmp_path / "t")
    assert opened.data_offset % 4096 == 0
    assert load_file(tmp_path / "t")["records"].shape == (opened.table_bytes,)


def test_chunks_are_summed_like_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_writer, "CHUNK_BYTES", 5000)
    num_bytes, chunks = written(tmp_path / "t", torch.randn(300, 64))
    assert len(chunks) == -(-num_bytes // 5000)


def test_a_cut_file_is_refused(tmp_path):
    num_bytes, _ = written(tmp_path / "t", torch.randn(100, 64))
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-1])
    with pytest.raises(MismatchError, match=rf"t: bytes.*{num_bytes}.*{num_bytes - 1}"):
        PackedFile.open(tmp_path / "t")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [("dtype", "int9", "int9"), ("row_dim", "x", "no packed table"), ("num_rows", "5", "records")],
)
def test_a_wrong_header_is_refused(tmp_path, key, value, text):
    written(tmp_path / "t", torch.randn(100, 64))
    blob = (tmp_path / "t").read_bytes()
    length = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8 : 8 + length])
    header["__metadata__"][key] = value
    text_bytes = json.dumps(header).encode().ljust(length)
    (tmp_path / "t").write_bytes(blob[:8] + text_bytes + blob[8 + length :])
    with pytest.raises((ArtefactError, MismatchError), match=text):
        PackedFile.open(tmp_path / "t")


@pytest.mark.parametrize("blob", [b"", b"12345678", struct.pack("<Q", 4088) + b"{" * 4088])
def test_no_packed_table_at_all(tmp_path, blob):
    (tmp_path / "t").write_bytes(blob)
    with pytest.raises(ArtefactError, match="t is no packed table"):
        PackedFile.open(tmp_path / "t")


def test_a_table_must_be_full():
    writer = PackedWriter(io.BytesIO(), RecordFormat("int8", 8), 10)
    writer.append(torch.zeros(9, 8))
    with pytest.raises(ConfigError, match="9 rows written; accepted: 10"):
        writer.finish()
    with pytest.raises(ConfigError, match="11 rows written"):
        writer.append(torch.zeros(2, 8))
