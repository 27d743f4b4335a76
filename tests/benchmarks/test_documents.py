"""Requests cut from documents: in turns, never twice, and never more than there are."""

import numpy as np
import pytest
from retrofit_cases import tiny_tokenizer

from benchmarks import documents
from benchmarks.documents import TokenRequests, chinese


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


def test_missing_chinese_is_said_with_the_command(monkeypatch):
    monkeypatch.setattr(documents.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"engram-server\[bench\]', or --text FILE"):
        chinese()
