"""Examples: facts as token ids, with the positions that training needs.

Each fact appears behind several contexts, because the n-grams at a short subject reach into
whatever stands before it. Knows the tokenizer; knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engram_core.errors import ConfigError
from engram_core.retrofit.facts import Fact

LEAD_INS = (
    "Here is something to know. ",
    "This is well established. ",
    "A short note:\n",
    "It says so in the book. ",
    "\n",
    "- ",
    "Question and answer.\n\n",
    "As everybody knows, ",
)


@dataclass(frozen=True, slots=True)
class Example:
    """One fact behind one context.

    Attributes:
        token_ids: context, prompt and completion.
        key_last: position of the subject's last token, the first that reads written rows.
        value_start: position of the completion's first token.
    """

    token_ids: tuple[int, ...]
    key_last: int
    value_start: int

    @property
    def suffix_length(self) -> int:
        """Positions that run with the memory: from `key_last` to the last but one."""
        return len(self.token_ids) - 1 - self.key_last

    @property
    def tail_length(self) -> int:
        """Suffix positions whose next token is still the prompt's."""
        return self.value_start - 1 - self.key_last


def make_example(tokenizer: Any, context: str, fact: Fact) -> Example:
    """Tokenise prompt and completion apart, as a server does that sees the prompt alone."""
    text = context + fact.prompt
    prompt = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    completion = tokenizer(fact.completion, add_special_tokens=False)["input_ids"]
    last_char = len(context) + fact.key_end - 1
    inside = [i for i, (start, _) in enumerate(prompt["offset_mapping"]) if start <= last_char]
    if not inside or not completion:
        raise ConfigError(f"the fact {fact.prompt!r} has no tokens; accepted: a non-empty text")
    return Example((*prompt["input_ids"], *completion), inside[-1], len(prompt["input_ids"]))


def draw_contexts(facts: Sequence[Fact], index: int, count: int, seed: int) -> list[str]:
    """What stands before fact `index`: nothing, another fact, then lead-ins and more facts."""
    generator = random.Random(f"{seed} {index}")  # noqa: S311 (a sample, not a secret)
    contexts = ["", _sentence(generator.choice(facts)), generator.choice(LEAD_INS)]
    while len(contexts) < count:
        contexts.append(_sentence(generator.choice(facts)) + generator.choice(LEAD_INS))
    return contexts[:count]


def make_examples(
    tokenizer: Any, facts: Sequence[Fact], num_contexts: int, seed: int
) -> list[list[Example]]:
    """Per context, the examples of all facts in order: ``[num_contexts][num_facts]``."""
    drawn = [draw_contexts(facts, index, num_contexts, seed) for index in range(len(facts))]
    return [
        [make_example(tokenizer, drawn[i][c], fact) for i, fact in enumerate(facts)]
        for c in range(num_contexts)
    ]


def _sentence(fact: Fact) -> str:
    return f"{fact.prompt}{fact.completion} "
