"""SafetensorsFile reads what the safetensors library writes, and believes no header blindly."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from engram_core.errors import ArtefactError, IdRangeError, MismatchError
from engram_core.tables.safetensors_file import DTYPES, SafetensorsFile

DTYPE_NAMES = sorted(DTYPES)


def opened(tmp_path, blob):
    path = tmp_path / "a.safetensors"
    path.write_bytes(blob)
    return SafetensorsFile(path)


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_every_dtype_bit_by_bit(tmp_path, name):
    raw = torch.arange(24 * DTYPES[name].itemsize, dtype=torch.uint8)
    tensor = raw.view(DTYPES[name]).view(6, 4)
    file = opened(tmp_path, save({"odd": torch.zeros(3, dtype=torch.uint8), "t": tensor}))
    assert file.entries["t"].dtype == name
    assert file.entries["t"].shape == (6, 4)
    assert torch.equal(file.read("t").view(torch.uint8), tensor.view(torch.uint8))
    rows = file.read_rows("t", 2, 5)
    assert torch.equal(rows.view(torch.uint8), tensor[2:5].contiguous().view(torch.uint8))


@given(st.integers(-2, 8), st.integers(-2, 8))
def test_rows_within_the_matrix_and_no_others(tmp_path_factory, start, stop):
    tensor = torch.arange(12.0).view(6, 2)
    file = opened(tmp_path_factory.mktemp("rows"), save({"t": tensor}))
    if 0 <= start <= stop <= 6:
        assert torch.equal(file.read_rows("t", start, stop), tensor[start:stop])
    else:
        with pytest.raises(IdRangeError, match="within 0 to 6"):
            file.read_rows("t", start, stop)


def raw_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(start, stop, shape=None, dtype="U8"):
    return {"dtype": dtype, "shape": shape or [stop - start], "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"", "no safetensors file"),
        (b"\xff" * 8, "a header of 18446744073709551615 bytes, accepted: 0"),
        (raw_file(b"{"), "no safetensors file"),
        (raw_file([]), "its header is no object"),
        (raw_file(b'{"a": 1, "a": 1}'), "a name appears twice"),
        (raw_file(b"[" * 100_000), "no safetensors file"),
        (raw_file({"t": 3}), "tensor 't' is 3"),
        (raw_file({"t": {"dtype": "U8", "shape": [1]}}), "tensor 't'"),
        (raw_file({"t": entry(0, 1, [-1])}), "tensor 't'"),
        (raw_file({"t": entry(0, 1, [True])}), "tensor 't'"),
        (raw_file({"t": entry(0, 1, [1.5])}), "tensor 't'"),
        (raw_file({"t": {**entry(0, 1), "data_offsets": [0, 1, 2]}}), "tensor 't'"),
        (raw_file({"t": {**entry(0, 1), "dtype": 8}}), "tensor 't'"),
        (raw_file({"t": entry(0, 6, [2, 2])}, b"123456"), "bytes of t .*expected 4, found 6"),
        (raw_file({"t": entry(0, 4)}, b"123"), r"file size .*expected \d+, found \d+"),
        (raw_file({"t": entry(0, 4)}, b"12345"), r"file size .*expected \d+, found \d+"),
        (raw_file({"t": entry(1, 4)}, b"1234"), "first byte of t "),
        (raw_file({"s": entry(0, 3), "t": entry(2, 4)}, b"1234"), "first byte of t "),
        (raw_file({"t": entry(3, 1, [1], "F4")}, b"1234"), "first byte of t "),
    ],
)
def test_damage_is_refused(tmp_path, blob, message):
    with pytest.raises(ArtefactError, match=message):
        opened(tmp_path, blob)


def test_metadata_and_narrow_dtypes_are_no_concern(tmp_path):
    header = {"__metadata__": {"format": "pt"}, "t": entry(0, 2, [4], "F4")}
    assert opened(tmp_path, raw_file(header, b"12")).entries["t"].dtype == "F4"


def test_a_file_that_became_shorter_is_noticed(tmp_path):
    file = opened(tmp_path, save({"t": torch.zeros(4, 4)}))
    with (tmp_path / "a.safetensors").open("r+b") as raw:
        raw.truncate(100)
    with pytest.raises(MismatchError, match=r"bytes read .*expected 64"):
        file.read("t")
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(ArtefactError, match=r"a\.safetensors cannot be read: No such file"):
        file.read_rows("t", 0, 1)
