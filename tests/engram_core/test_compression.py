"""TokenCompressor: folding rules, resizing, the disk cache, refusals."""

import numpy as np
import pytest
from golden_cases import DEMO
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from engram_core.compression import TokenCompressor
from engram_core.errors import ConfigError, IdRangeError


def tokenizer_of(*texts):
    return Tokenizer(
        models.WordLevel({text: i for i, text in enumerate(texts)}, unk_token=texts[0])
    )


def classes(*texts):
    return TokenCompressor.from_tokenizer(tokenizer_of(*texts)).class_ids.tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello", "hello"),
        ("\u00e9t\u00e9", "ete"),  # accents
        ("\uff21\uff22\uff23", "abc"),  # full width
        ("a\u20dd", "a"),  # an enclosing mark (Me) goes too
        ("\u03a3", "\u03c3"),  # capital sigma lowers without the final form
        ("a \t\r\n b", "a b"),
        (" x ", "x"),
        ("\t", " "),  # a run of blanks is one space, and survives alone
    ],
)
def test_texts_that_read_the_same_share_a_class(one, other):
    assert classes("<unk>", one, other) == [0, 1, 1]


@pytest.mark.parametrize(("one", "other"), [("\u03c3", "\u03c2"), ("\u001f", ""), (" ", "a")])
def test_texts_that_differ_keep_their_classes(one, other):
    assert classes("<unk>", one, other) == [0, 1, 2]


def test_a_text_that_folds_to_nothing_keeps_its_own_form():
    assert classes("<unk>", "\u0301", "\u0302") == [0, 1, 2]


def test_added_tokens_count():
    tokenizer = tokenizer_of("<unk>", "a")
    tokenizer.add_special_tokens([AddedToken("<image>")])
    assert TokenCompressor.from_tokenizer(tokenizer).class_ids.tolist() == [0, 1, 2]


def test_accepts_a_transformers_tokenizer():
    path = DEMO / "tokenizers" / "tiny_bytelevel"
    fast = PreTrainedTokenizerFast.from_pretrained(path)
    plain = Tokenizer.from_file(str(path / "tokenizer.json"))
    found = TokenCompressor.from_tokenizer(fast)
    assert found.fingerprint == TokenCompressor.from_tokenizer(plain).fingerprint
    assert found.num_ids == len(fast)


def test_num_ids_extends_with_new_classes_and_cuts():
    tokenizer = tokenizer_of("<unk>", "A", "a")
    longer = TokenCompressor.from_tokenizer(tokenizer, num_ids=5)
    assert (longer.class_ids.tolist(), longer.size) == ([0, 1, 1, 2, 3], 4)
    shorter = TokenCompressor.from_tokenizer(tokenizer, num_ids=1)
    assert (shorter.class_ids.tolist(), shorter.size) == ([0], 1)


def test_cache_serves_and_a_damaged_file_is_rebuilt(tmp_path):
    tokenizer = tokenizer_of("<unk>", "A", "a")
    fresh = TokenCompressor.from_tokenizer(tokenizer, cache_dir=tmp_path)
    [path] = tmp_path.iterdir()
    np.save(path, np.array([0, 1, 2]))  # another map in its place shows that the file is read
    cached = TokenCompressor.from_tokenizer(tokenizer, cache_dir=tmp_path)
    assert cached.class_ids.tolist() == [0, 1, 2]
    path.write_bytes(path.read_bytes()[:20])
    rebuilt = TokenCompressor.from_tokenizer(tokenizer, cache_dir=tmp_path)
    assert rebuilt.fingerprint == fresh.fingerprint
    assert list(tmp_path.iterdir()) == [path]


def test_compress_ranges():
    compressor = TokenCompressor.from_tokenizer(tokenizer_of("<unk>", "A", "a"))
    assert compressor.compress([[2, 1], [0, -7]]).tolist() == [[1, 1], [0, -7]]
    with pytest.raises(IdRangeError, match="token id 3 is out of range; accepted: below 3"):
        compressor.compress([0, 3])


def test_refusals():
    with pytest.raises(ConfigError, match="num_ids is 0"):
        TokenCompressor.from_tokenizer(tokenizer_of("<unk>"), num_ids=0)
    with pytest.raises(ConfigError, match="fast tokenizer"):
        TokenCompressor.from_tokenizer(object())
