"""Text in pieces equals decoding everything at once, whole characters only."""

import pytest
from fakes.tokenizer import ByteTokenizer
from golden_cases import ROOT
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from server.engine.detokenizer import Detokenizer

FOLDER = ROOT / "demo_v1" / "tokenizers"
TOKENIZERS = {
    name: Tokenizer.from_file(str(FOLDER / name / "tokenizer.json"))
    for name in ("tiny_bytelevel", "tiny_metaspace")
}
TEXTS = [
    "Hello, world! It's fine.",
    "你好,世界。記憶は表にある。",
    "family 👨‍👩‍👧‍👦 flag 🇫🇷 thumbs 👍🏽 end",
    "  indented\n\ttabs  and   runs ",
    "naïve café — “quotes” … ½",
]


def pieces(decoder, prompt, ids):
    stream = Detokenizer(getattr(decoder, "backend_tokenizer", decoder), prompt)
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_equal_the_whole(name, text):
    decoder = TOKENIZERS[name]
    ids = decoder.encode(text, add_special_tokens=False).ids
    parts = pieces(decoder, [], ids)
    assert "".join(parts) == decoder.decode(ids)
    if name == "tiny_bytelevel":
        assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_pieces_continue_any_prompt(name, data):
    decoder = TOKENIZERS[name]
    text = data.draw(st.text(min_size=1, max_size=30))
    ids = decoder.encode(text, add_special_tokens=False).ids
    cut = data.draw(st.integers(0, len(ids)))
    before, whole = decoder.decode(ids[:cut]), decoder.decode(ids)
    if before.endswith("\ufffd"):
        return  # the prompt ends inside a character: see below
    assert "".join(pieces(decoder, ids[:cut], ids[cut:])) == whole[len(before) :]


@given(text=st.text(min_size=1, max_size=20))
def test_bytes_are_held_until_a_character_is_complete(text):
    decoder = ByteTokenizer()
    parts = pieces(decoder, [], decoder.encode(text))
    assert "".join(parts) == text
    assert "\ufffd" in text or not any("\ufffd" in part for part in parts)


def test_an_unfinished_character_is_flushed():
    decoder = ByteTokenizer()
    ids = decoder.encode("ok 你")[:-1]
    parts = pieces(decoder, [], ids)
    assert "".join(parts) == decoder.decode(ids)
    assert parts[-1] == "\ufffd"


def test_a_prompt_that_ends_inside_a_character_shows_nothing_of_itself():
    decoder = ByteTokenizer()
    ids = decoder.encode("你!")
    assert "".join(pieces(decoder, ids[:1], ids[1:])).endswith("!")


def test_an_endless_run_of_invalid_bytes_is_given_out():
    decoder = ByteTokenizer()
    invalid = [0x80 + decoder.first_byte] * 200
    parts = pieces(decoder, [], invalid)
    assert "".join(parts) == "\ufffd" * 200
    assert any(parts[:-1])


def test_special_tokens_have_no_text():
    decoder = ByteTokenizer()
    assert pieces(decoder, [], [*decoder.encode("a"), 1, *decoder.encode("b")]) == [
        "a",
        "",
        "b",
        "",
    ]
