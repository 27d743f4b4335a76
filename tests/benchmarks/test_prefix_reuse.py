import pytest
from fakes.http import serve
from real_backend import TinyLoader

from benchmarks.prefix_reuse import Answer, Reuse, measure, render


def answer(first_token_s, text="same", cached=0) -> Answer:
    return Answer(first_token_s, text, 1010, cached)


def test_figures() -> None:
    found = Reuse(
        [answer(1.0), answer(1.2)],
        [answer(0.1, cached=992), answer(0.12, cached=992)],
        [answer(0.1, cached=992), answer(0.1, text="other", cached=992)],
    )
    assert found.interval.ratio == pytest.approx(10)
    assert found.unchanged == 0.5
    text = render(found)
    assert "| the same prefix, another ending | 1010 | 992 | 110 |" in text
    assert "10.0x sooner" in text
    assert "unchanged 50%" in text


def test_a_server_knows_prefixes_and_answers_the_same() -> None:
    prefixes = [f"Part {n}. " + "once and for all " * 12 for n in range(2)]
    with serve(TinyLoader(), max_model_len=512) as served:
        found = measure(served.url, prefixes, new_tokens=6)
    assert [each.cached_tokens for each in found.new] == [0, 0]
    for answers in (found.repeated, found.again):
        assert all(each.cached_tokens >= 96 for each in answers)
    assert found.unchanged == 1.0
