"""Token files: ids as they are, texts through a tokenizer, and one sentence for everything else."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from engram_core.compression import TokenCompressor
from engram_core.errors import ConfigError
from server.token_file import read_tokens

FOLDER = Path(__file__).parents[1] / "golden" / "demo_v1" / "tokenizers" / "tiny_bytelevel"
TEXT = "The memory of the Memory, the MEMORY of the memory."


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64])
def test_ids_in_npy_and_json(tmp_path, dtype):
    np.save(tmp_path / "ids.npy", np.array([3, 1, 4, 1], dtype=dtype))
    (tmp_path / "ids.json").write_text("[3, 1, 4, 1]")
    for name in ("ids.npy", "ids.json"):
        ids, classes = read_tokens(tmp_path / name, None)
        assert ids.tolist() == [3, 1, 4, 1]
        assert classes.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("place", [FOLDER, FOLDER / "tokenizer.json"])
def test_a_text_becomes_ids_and_folded_classes(tmp_path, place):
    (tmp_path / "a.txt").write_text(TEXT)
    ids, classes = read_tokens(tmp_path / "a.txt", place)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    assert ids.tolist() == tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert classes.tolist() == TokenCompressor.from_tokenizer(tokenizer).class_ids.tolist()
    assert classes.max() + 1 < len(classes)


def test_ids_take_the_tokenizers_classes(tmp_path):
    (tmp_path / "ids.json").write_text("[3, 1]")
    _, classes = read_tokens(tmp_path / "ids.json", FOLDER)
    assert len(classes) > 4


def test_a_tokenizer_file_that_cuts_and_pads_does_neither(tmp_path):
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "a.txt").write_text(TEXT)
    ids, _ = read_tokens(tmp_path / "a.txt", tmp_path)
    assert ids.tolist() == read_tokens(tmp_path / "a.txt", FOLDER)[0].tolist()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"text", "token_file is 'a.txt', a text, and tokenizer is not given; accepted"),
        ("a.json", b"[1, 2", "token_file is 'a.json'; accepted: one list of whole numbers in it"),
        ("a.json", b"\xff\xfe", "token_file is 'a.json'; accepted: one list of whole numbers"),
        ("a.json", b"[" * 100_000, "token_file is 'a.json'; accepted: one list of whole numbers"),
        ("a.json", b"[[1], [2, 3]]", "token_file is 'a.json'; accepted: one list of whole numbers"),
        ("a.json", b"[1.5]", "token_file is 'a.json'; accepted: one list of whole numbers in it"),
        ("a.json", b'{"a": 1}', "token_file is 'a.json'; accepted: one list of whole numbers"),
        ("a.json", b"[true]", "token_file is 'a.json'; accepted: one list of whole numbers in it"),
        ("a.json", b"[-1, 5]", "token_file has ids from -1 to 5; accepted: 0 to 16777215"),
        ("a.json", b"[16777216]", "ids from 16777216 to 16777216; accepted: 0 to 16777215"),
        ("a.json", b"[1e400]", "token_file is 'a.json'; accepted: one list of whole numbers"),
        ("a.npy", b"not numpy", "token_file is 'a.npy'; accepted: one list of whole numbers in it"),
        ("a.npy", b"", "token_file is 'a.npy'; accepted: one list of whole numbers in it"),
    ],
)
def test_what_is_no_token_file(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read_tokens(tmp_path / name, None)


def test_an_array_of_objects_is_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="accepted: one list of whole numbers"):
        read_tokens(tmp_path / "a.npy", None)


def test_missing_and_wrong_files_are_named_without_their_folder(tmp_path):
    with pytest.raises(ConfigError) as refused:
        read_tokens(tmp_path / "a.npy", None)
    assert str(refused.value) == "token_file is 'a.npy', which does not exist; accepted: a file"
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"token_file is 'a.txt'; accepted: a text in UTF-8"):
        read_tokens(tmp_path / "a.txt", FOLDER)
    with pytest.raises(ConfigError, match=r"^tokenizer is 'tokenizer.json', which does not exist"):
        read_tokens(tmp_path / "a.txt", tmp_path)
    with pytest.raises(ConfigError, match=r"^tokenizer is 'a.txt', which cannot be read; accepted"):
        read_tokens(tmp_path / "a.txt", tmp_path / "a.txt")


def test_a_file_that_cannot_be_read_is_told_with_the_reason(tmp_path, monkeypatch):
    (tmp_path / "ids.json").write_text("[1]")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError) as refused:
        read_tokens(tmp_path / "ids.json", None)
    assert str(refused.value) == (
        "token_file is 'ids.json', which cannot be read (Permission denied); accepted: a file"
    )
