"""Requests cut from documents: in turns, never twice, and never more than there are."""

from itertools import islice

import numpy as np
import pytest
from retrofit_cases import tiny_tokenizer

from benchmarks import documents
from benchmarks.documents import TokenRequests, chinese, english
from benchmarks.synthetic_rows import SyntheticRows


def requests(num_tokens=4):
    texts = [["acegikmoqs"], ["123456789012"]]
    return TokenRequests(tiny_tokenizer(), texts, num_tokens)


def test_texts_take_turns_and_no_token_comes_twice():
    source, tokenizer = requests(), tiny_tokenizer()
    assert source.total == 4
    streams = [tokenizer(text)["input_ids"] for text in ("acegikmoqs", "123456789012")]
    found = [ids.tolist() for ids in source.take(1) + source.take(3)]
    assert found == [stream[start : start + 4] for start in (0, 4) for stream in streams]
    again = source.from_start()
    assert np.array_equal(again.take(1)[0], requests().take(1)[0])


def test_too_little_text_is_said_with_both_numbers():
    source = requests()
    source.take(3)
    with pytest.raises(SystemExit, match="make 4 requests of 4 tokens, and 5 are needed; accepted"):
        source.take(2)


def test_english_comes_with_python_and_repeats_nothing(monkeypatch):
    some = list(islice(documents._docstrings(), 300))
    monkeypatch.setattr(documents, "_docstrings", lambda: iter(some + some))
    texts = english()
    assert len(texts) == len(set(texts)) > 290
    assert sum(map(len, texts)) > 400_000


def test_missing_chinese_is_said_with_the_command(monkeypatch):
    monkeypatch.setattr(documents.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"engram-server\[bench\]', or --text FILE"):
        chinese()


def test_synthetic_rows_are_the_same_however_they_are_read():
    rows = SyntheticRows(200_000, 4, seed=1)
    whole = rows.read(0, 200_000)
    assert (whole[65_530:131_080] == rows.read(65_530, 131_080)).all()
    assert len(np.unique(whole.float().numpy(), axis=0)) > 60_000
    assert (rows.read(65_536, 65_600) != rows.read(0, 64)).any()
