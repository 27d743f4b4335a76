import math
from dataclasses import dataclass

import pytest

from benchmarks.knowledge import exact_recall, passages, perplexity


@dataclass
class Fact:
    prompt: str
    completion: str


FACTS = [Fact("The capital of Botswana is", " Gaborone."), Fact("St. Ives is in", " St. Ives.")]


def test_recall_is_exact_and_counts_from_the_start() -> None:
    answers = {FACTS[0].prompt: " Gaborone. And", FACTS[1].prompt: " St. ives."}

    def ask(prompt, *, max_new_tokens, stop):
        return answers[prompt]

    assert exact_recall(FACTS, ask, num_threads=2) == 0.5


def test_answers_may_end_early_only_where_that_cuts_nothing() -> None:
    asked = {}

    def ask(prompt, *, max_new_tokens, stop):
        asked[prompt] = (max_new_tokens, stop)
        return ""

    exact_recall(FACTS, ask, num_threads=1)
    assert asked[FACTS[0].prompt] == (len(" Gaborone."), ["."])
    assert asked[FACTS[1].prompt] == (len(" St. Ives."), [])


def test_perplexity_weighs_tokens_not_texts() -> None:
    rows = {"long": [math.log(0.5)] * 3, "short": [math.log(0.25)]}
    expected = math.exp(-(3 * math.log(0.5) + math.log(0.25)) / 4)
    assert perplexity(["long", "short"], rows.__getitem__, 2) == pytest.approx(expected)


def test_passages_are_whole_words_from_all_over_the_text() -> None:
    text = " ".join(f"word{n}" for n in range(1000))
    found = passages(text, 4, 200)
    assert len(found) == 4
    assert all(set(passage.split(" ")) <= set(text.split(" ")) for passage in found)
    assert found[-1].startswith("word75")
    with pytest.raises(ValueError, match="characters"):
        passages(text, 4, len(text))
