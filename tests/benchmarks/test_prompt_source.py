import pytest
from model_folder import TOKENIZER
from transformers import AutoTokenizer

from benchmarks.prompt_source import PromptSource, reference_text


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(TOKENIZER)


def test_prompts_survive_as_text(tokenizer) -> None:
    source = PromptSource(tokenizer)
    for prompt in source.take(4, 24):
        assert tokenizer(source.text(prompt))["input_ids"] == prompt


def test_no_two_prompts_begin_alike_even_in_a_further_pass(tokenizer) -> None:
    text = "".join(f"{number:05}" for number in range(60))
    prompts = PromptSource(tokenizer, text).take(14, 40)  # 7 windows a pass
    assert len({tuple(prompt[:16]) for prompt in prompts}) == len(prompts)


def test_a_text_that_is_too_short_is_refused(tokenizer) -> None:
    with pytest.raises(ValueError, match="a prompt has 100 tokens"):
        PromptSource(tokenizer, "short").take(1, 100)


def test_the_text_that_every_python_carries() -> None:
    assert len(reference_text()) > 100_000
