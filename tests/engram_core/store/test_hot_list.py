"""The list of hot rows: read as written, replaced at once, refused when it is another's."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from engram_core.errors import ArtefactError, MismatchError
from engram_core.store.hot_list import HotList, read_hot_list, write_hot_list

IDS, COUNTS = np.array([7, 3, 99]), np.array([200, 9, 1], dtype=np.uint8)
FACTS = {"format": "engram-hot-list-1", "num_rows": "100", "row_dim": "8"}


@pytest.mark.parametrize("size", [0, 3])
def test_it_is_read_as_written(tmp_path, size):
    path = tmp_path / "new folder" / "hot.safetensors"
    for ids in (IDS[::-1].copy(), IDS):
        write_hot_list(path, HotList(100, 8, ids[:size], COUNTS[:size]))
        found = read_hot_list(path, 100, 8)
        np.testing.assert_array_equal(found.row_ids, ids[:size])
        np.testing.assert_array_equal(found.counts, COUNTS[:size])
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("shape", [(101, 8), (100, 4)])
def test_the_list_of_another_table_is_refused(tmp_path, shape):
    path = tmp_path / "hot.safetensors"
    write_hot_list(path, HotList(100, 8, IDS, COUNTS))
    sentence = f"expected {shape[0]} rows of {shape[1]}, found 100 rows of 8"
    with pytest.raises(MismatchError, match=f"^hot.safetensors: shape of the table .*{sentence}$"):
        read_hot_list(path, *shape)


@pytest.mark.parametrize(
    ("tensors", "facts", "sentence"),
    [
        ({"row_ids": IDS, "counts": COUNTS}, {}, "has format None; accepted: 'engram-hot-list-1'"),
        ({"row_ids": IDS}, FACTS, "no readable list"),
        ({"row_ids": IDS, "counts": COUNTS[:2]}, FACTS, "accepted: different int64 ids"),
        ({"row_ids": IDS.astype(np.int32), "counts": COUNTS}, FACTS, "accepted: different int64"),
        ({"row_ids": IDS[[0, 0, 1]], "counts": COUNTS}, FACTS, "accepted: different int64 ids"),
        ({"row_ids": IDS + 1, "counts": COUNTS}, FACTS, "row id 100 is out of range"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path, tensors, facts, sentence):
    path = tmp_path / "hot.safetensors"
    save_file(tensors, path, metadata=facts)
    with pytest.raises(ArtefactError, match=f"hot.safetensors.*{sentence}"):
        read_hot_list(path, 100, 8)


def test_a_missing_or_damaged_file_is_refused_by_name(tmp_path):
    path = tmp_path / "hot.safetensors"
    with pytest.raises(ArtefactError, match=r"^hot.safetensors does not exist"):
        read_hot_list(path, 100, 8)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ArtefactError, match=r"^hot.safetensors is no readable list"):
        read_hot_list(path, 100, 8)
    with pytest.raises(ArtefactError, match="no readable list"):
        read_hot_list(tmp_path, 100, 8)


def test_a_failed_write_keeps_the_old_list(tmp_path, monkeypatch):
    path = tmp_path / "hot.safetensors"
    write_hot_list(path, HotList(100, 8, IDS, COUNTS))

    def refuse(*_):
        raise OSError("full")

    monkeypatch.setattr("engram_core.store.hot_list.os.fsync", refuse)
    with pytest.raises(OSError, match="full"):
        write_hot_list(path, HotList(100, 8, IDS[:1], COUNTS[:1]))
    assert read_hot_list(path, 100, 8).row_ids.tolist() == IDS.tolist()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
