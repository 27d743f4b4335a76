"""`engram-server table info --tokens`: what a file does to the rows, and what is no such file."""

import json
from pathlib import Path

import numpy as np
import pytest
from artefacts import tiny_content
from tokenizers import Tokenizer

from engram_core.compression import TokenCompressor
from engram_core.errors import ConfigError
from engram_core.tables import write_artefact
from server import token_stream
from server.cli import main
from server.token_stream import TokenStream

TOKENIZER = Path(__file__).parents[1] / "golden" / "demo_v1" / "tokenizers" / "tiny_bytelevel"
TEXT = "The memory of the Memory,\nthe MEMORY of the memory.\n" * 50


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))


@pytest.fixture
def shelf(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setenv("ENGRAM_SERVER_CACHE_DIR", str(tmp_path / "cache"))
    compressor = TokenCompressor.from_tokenizer(tokenizer)
    write_artefact(tmp_path / "tiny", tiny_content(compressor=compressor))
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path


def run(capsys, *words):
    code = main(["table", "info", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def told(capsys, shelf, file):
    code, out, err = run(capsys, shelf / "tiny", "--tokens", shelf / file, "--tokenizer", TOKENIZER)
    assert (code, err) == (0, "")
    return json.loads(out)["tokens"]


def test_a_text_and_its_ids_say_the_same(shelf, capsys, tokenizer):
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    np.save(shelf / "a.npy", np.array(ids, dtype=np.uint16))
    (shelf / "a.json").write_text(json.dumps(ids))
    text, array, listed = (told(capsys, shelf, name) for name in ("a.txt", "a.npy", "a.json"))
    assert text.pop("file") == "a.txt"
    assert text["tokens"] == len(ids)
    assert [(load["layer"], load["order"]) for load in text["loads"]] == [
        (1, 2), (1, 3), (2, 2), (2, 3)
    ]  # fmt: skip
    for load in text["loads"]:
        assert load["lookups"] == 2 * len(ids)
        assert 0 < load["distinct_rows"] <= load["distinct_ngrams"] < len(ids)
        assert 0 <= load["collision_rate"] <= 1
    assert text == {k: v for k, v in array.items() if k != "file"}
    assert text == {k: v for k, v in listed.items() if k != "file"}


def test_a_long_text_is_read_in_pieces(tmp_path, tokenizer, monkeypatch):
    text = TEXT + "ä" * 700 + "the end"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    monkeypatch.setattr(token_stream, "_TEXT_BYTES", 101)  # also in the middle of a character
    monkeypatch.setattr(token_stream, "_CHUNK_IDS", 7)
    with TokenStream(tmp_path / "a.txt", tokenizer) as tokens:
        read = np.concatenate([*tokens.chunks()])
        assert np.array_equal(read, np.concatenate([*tokens.chunks()]))
        assert len(tokens) == len(read)
    assert tokenizer.decode(read.tolist()) == text


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("no.txt", None, "tokens is 'no.txt', which does not exist; accepted: a file"),
        ("a.txt", b"", "tokens is 'a.txt' without a token; accepted: some"),
        ("a.txt", b"\xff\xfe", "tokens is 'a.txt'; accepted: a text in UTF-8"),
        ("a.json", b'{"a": 1}', "tokens is 'a.json'; accepted: one list of whole numbers in it"),
        ("a.npy", b"no array", "tokens is 'a.npy'; accepted: one list of whole numbers in it"),
        ("a.json", b"[-1]", "tokens has ids from -1 to -1; accepted: 0 to 16777215"),
        ("a.json", b"[99999]", "token id 99999 is out of range; accepted: below "),
    ],
)
def test_mistakes_are_one_sentence(shelf, capsys, name, content, sentence):
    if content is not None:
        (shelf / name).write_bytes(content)
    code, out, err = run(capsys, shelf / "tiny", "--tokens", shelf / name, "--tokenizer", TOKENIZER)
    assert (code, out) == (1, "")
    assert err.startswith(f"engram-server: {sentence}")
    assert err.count("\n") == 1
    assert str(shelf) not in err


def test_a_cut_array_is_refused(tmp_path, tokenizer):
    np.save(tmp_path / "a.npy", np.arange(100, dtype=np.int64))
    blob = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(blob[:-8])
    with pytest.raises(ConfigError, match=r"'a\.npy', which ends 1 ids early; accepted: 100 ids"):
        TokenStream(tmp_path / "a.npy", tokenizer)


def test_another_tokenizer_is_refused_with_both_values(shelf, capsys):
    other = TOKENIZER.parent / "tiny_metaspace"
    code, out, err = run(capsys, shelf / "tiny", "--tokens", shelf / "a.txt", "--tokenizer", other)
    assert (code, out) == (1, "")
    assert "tiny: " in err
    assert "does not match: expected" in err


@pytest.mark.parametrize(("flag", "value"), [("--tokenizer", TOKENIZER), ("--model", "some/model")])
def test_a_tokenizer_without_tokens_is_a_mistake(shelf, capsys, flag, value):
    code, _, err = run(capsys, shelf / "tiny", flag, value)
    assert code == 1
    assert err.endswith("; accepted: only with --tokens\n")
