"""How much a served model recalls, and how well it predicts text it was never taught.

Knows the questions and how answers are judged; does not know what a memory is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

MAX_VALUE_TOKENS = 64


class Question(Protocol):
    """A prompt and the text that must follow it, word for word."""

    @property
    def prompt(self) -> str:
        """The text in front."""

    @property
    def completion(self) -> str:
        """The text that counts as recalled, its leading space included."""


class Answerer(Protocol):
    """Answers a prompt greedily."""

    def __call__(self, prompt: str, *, max_new_tokens: int, stop: list[str]) -> str:
        """The answer, stop string included."""


def exact_recall(questions: Sequence[Question], ask: Answerer, num_threads: int) -> float:
    """Share of the questions whose answer starts with the completion, character for character."""

    def is_recalled(question: Question) -> bool:
        completion = question.completion
        budget = min(MAX_VALUE_TOKENS, len(completion.encode()))  # a token is a byte or more
        answer = ask(question.prompt, max_new_tokens=budget, stop=_stop(completion))
        return answer.startswith(completion)

    with ThreadPoolExecutor(num_threads) as threads:
        recalled = list(threads.map(is_recalled, questions))
    return sum(recalled) / len(recalled)


def perplexity(
    texts: Sequence[str], logprobs: Callable[[str], Sequence[float]], num_threads: int
) -> float:
    """Perplexity per token over all texts, each read from its own beginning."""
    with ThreadPoolExecutor(num_threads) as threads:
        rows = list(threads.map(logprobs, texts))
    total, count = sum(map(sum, rows)), sum(map(len, rows))
    return math.exp(-total / count)


def passages(text: str, num_passages: int, num_chars: int) -> list[str]:
    """Passages spread evenly over a text, each cut at a space.

    Raises ValueError when the text is too short.
    """
    stride = len(text) // num_passages
    if stride < num_chars:
        raise ValueError(f"{num_passages} x {num_chars} characters asked of {len(text)}")
    cuts = (text[start : start + num_chars] for start in range(0, stride * num_passages, stride))
    return [" ".join(cut.split(" ")[1:-1]) for cut in cuts]


def _stop(completion: str) -> list[str]:
    """A character that ends the answer early without cutting the completion, if there is one."""
    last = completion[-1]
    return [last] if last not in completion[:-1] else []
