"""Facts as text: a prompt, the completion that a memory shall recall, and the prompt's subject.

A facts file has one fact a line, ``prompt<TAB>completion``; both are taken literally, so that the
completion usually starts with a space and must end where recall ends. Knows no tokenizer.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engram_core.errors import ConfigError

MIN_SHARE = 0.02  # a tail is a wording, not a coincidence, when this share of the prompts ends so


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing to remember.

    Attributes:
        prompt: the text in front of the value, for example ``"The capital of Botswana is"``.
        completion: the value, for example ``" Gaborone."``.
        tail: the wording behind the prompt's subject, for example ``" is"``; may be empty.
    """

    prompt: str
    completion: str
    tail: str = ""

    @property
    def key_end(self) -> int:
        """Where the subject ends in the prompt, in characters."""
        return len(self.prompt) - len(self.tail)


def read_facts(path: Path) -> list[Fact]:
    """Read a facts file (plain or ``.gz``); tails are found by `with_tails`.

    Raises ConfigError for a line that is not ``prompt<TAB>completion`` and for a prompt that
    stands twice with different completions.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        pairs = [_parse(number, line.rstrip("\n")) for number, line in enumerate(file, start=1)]
    _refuse_contradictions(pairs)
    return with_tails(pairs)


def write_facts(path: Path, facts: Iterable[Fact]) -> None:
    """Write what `read_facts` reads (plain text)."""
    lines = [f"{fact.prompt}\t{fact.completion}\n" for fact in facts]
    path.write_text("".join(lines), encoding="utf-8")


def with_tails(pairs: Sequence[tuple[str, str]]) -> list[Fact]:
    """Tell each prompt's subject from the wording behind it.

    The tail is the longest run of whole words at a prompt's end that at least 2 % of the prompts
    (and at least two of them) share.
    """
    needed = max(2, MIN_SHARE * len(pairs))
    counts = Counter(tail for prompt, _ in pairs for tail in _word_tails(prompt))
    return [
        Fact(prompt, completion, _longest(prompt, counts, needed)) for prompt, completion in pairs
    ]


def _longest(prompt: str, counts: Counter[str], needed: float) -> str:
    shared = [tail for tail in _word_tails(prompt) if counts[tail] >= needed]
    return max(shared, key=len, default="")


def _word_tails(prompt: str) -> list[str]:
    """Every proper ending of the prompt that starts at a space."""
    return [prompt[i:] for i in range(1, len(prompt)) if prompt[i] == " "]


def _parse(number: int, line: str) -> tuple[str, str]:
    fields = line.split("\t")
    if len(fields) != 2 or not all(field.strip() for field in fields):
        raise ConfigError(
            f"line {number} of the facts file has {len(fields)} field(s); "
            "accepted: prompt<TAB>completion, neither of them blank"
        )
    return fields[0], fields[1]


def _refuse_contradictions(pairs: Iterable[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for prompt, completion in pairs:
        if seen.setdefault(prompt, completion) != completion:
            raise ConfigError(
                f"the prompt {prompt!r} stands twice with different completions: "
                f"{seen[prompt]!r} and {completion!r}"
            )
