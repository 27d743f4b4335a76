"""Examples: token ids and the positions that training needs."""

import pytest
from retrofit_cases import FACTS, tiny_tokenizer

from engram_core.errors import ConfigError
from engram_core.retrofit.examples import draw_contexts, make_example, make_examples
from engram_core.retrofit.facts import Fact

TOKENIZER = tiny_tokenizer()


@pytest.mark.parametrize("context", ["", "Rain. ", "\n"])
@pytest.mark.parametrize("fact", FACTS, ids=lambda f: f.prompt)
def test_positions(context, fact) -> None:
    example = make_example(TOKENIZER, context, fact)
    before = TOKENIZER.decode(example.token_ids[: example.key_last])
    key_and_before = TOKENIZER.decode(example.token_ids[: example.key_last + 1])
    subject = context + fact.prompt[: fact.key_end]
    assert len(before) < len(subject) <= len(key_and_before)
    assert TOKENIZER.decode(example.token_ids[: example.value_start]) == context + fact.prompt
    assert TOKENIZER.decode(example.token_ids[example.value_start :]) == fact.completion
    assert example.suffix_length == len(example.token_ids) - 1 - example.key_last
    assert 0 <= example.tail_length < example.suffix_length


def test_prompt_ids_are_those_of_the_prompt_alone() -> None:
    example = make_example(TOKENIZER, "", FACTS[0])
    alone = TOKENIZER(FACTS[0].prompt, add_special_tokens=False)["input_ids"]
    assert list(example.token_ids[: example.value_start]) == alone


def test_contexts_differ_and_repeat_with_the_seed() -> None:
    drawn = draw_contexts(FACTS, 2, 5, seed=0)
    assert drawn == draw_contexts(FACTS, 2, 5, seed=0)
    assert drawn[0] == ""
    assert len(set(drawn)) == 5


def test_examples_by_context() -> None:
    contexts = make_examples(TOKENIZER, FACTS, 3, seed=0)
    assert [len(context) for context in contexts] == [len(FACTS)] * 3


def test_an_empty_fact_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        make_example(TOKENIZER, "", Fact("", " x."))
