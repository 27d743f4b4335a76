"""Stop strings: the outcome is the same however the text is cut; only what must wait is held."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.stopping import StopMatcher

TEXT = st.text(alphabet="abc", max_size=20)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


def feed(pieces, stops, **settings):
    matcher = StopMatcher(stops, **settings)
    shown = "".join(matcher.push(piece) for piece in pieces)
    return shown + matcher.flush(), matcher.matched


def first_end(text, stops):
    """By definition: cut before the match that is complete first, the longest one there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 20)))
def test_any_cutting_gives_the_text_before_the_first_match(text, stops, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert feed(pieces, stops) == first_end(text, stops)


@given(text=TEXT, stops=STOPS)
def test_kept_stop_string_ends_the_text(text, stops):
    shown, matched = feed(text, stops, keep_stop=True)
    before, expected = first_end(text, stops)
    assert (shown, matched) == (before + (expected or ""), expected)


@given(text=TEXT, stops=STOPS)
def test_only_a_proper_prefix_of_a_stop_string_is_held(text, stops):
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    held = matcher.flush()
    if matcher.matched is None:
        assert shown + held == text
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
        longer = [text[-size:] for size in range(len(held) + 1, len(text) + 1)]
        assert not any(stop.startswith(end) and stop != end for stop in stops for end in longer)


@pytest.mark.parametrize("pieces", [["one\n\nUser: two"], ["one\n", "\nUs", "er: two"]])
def test_nothing_after_the_match_is_shown(pieces):
    assert feed(pieces, ["\n\nUser:"]) == ("one", "\n\nUser:")


def test_no_stop_strings_hold_nothing():
    assert StopMatcher([]).push("abc") == "abc"
