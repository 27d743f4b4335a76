"""Builds a facts file out of WordNet's database files.

Run as ``python -m engram_core.retrofit.wordnet --wordnet /usr/share/wordnet --out facts.tsv``
(Debian's package ``wordnet-base`` puts the files there). The same files and seed give the same
facts. Knows WordNet's file format (wndb(5WN)); knows nothing about tokens or training.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from engram_core.errors import ConfigError
from engram_core.retrofit.facts import Fact, with_tails, write_facts

# facts per template
COUNTS = {"kind": 1750, "birth": 750, "capital": 233, "family": 300}

# lexicographers' files and subtrees whose members read well after "A ... is a"
KIND_FILES = frozenset({5, 6, 13, 20, 27})  # animal, artifact, food, plant, substance
ROOT_FILES = KIND_FILES | {3}  # the topmost synsets have a file of their own
ROOTS = frozenset(
    {"animal", "plant", "food", "instrument", "musical_instrument", "drug", "mineral"}
)
YEARS = re.compile(r"\((?:born in )?(1[0-9]{3})(?:-[0-9]{4})?\)")
KIND_WORD = re.compile("[a-z]{2,}(?:[a-rt-z]|[isu]s)")  # no plurals
PERSON_FILE = 18
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Synset:
    """One noun synset: its words (spaces as underscores), pointers and gloss."""

    offset: int
    lex_file: int
    words: tuple[str, ...]
    pointers: tuple[tuple[str, int], ...]  # (symbol, offset of a noun synset)
    gloss: str

    def targets(self, *symbols: str) -> list[int]:
        """Offsets that the pointers with these symbols lead to."""
        return [offset for symbol, offset in self.pointers if symbol in symbols]


class WordNetNouns:
    """The nouns of a WordNet database folder."""

    def __init__(self, folder: Path) -> None:
        self.synsets = {s.offset: s for s in _read_synsets(_existing(folder / "data.noun"))}
        self.first_sense = dict(_read_first_senses(_existing(folder / "index.noun")))

    @cached_property
    def roots(self) -> frozenset[int]:
        """Offsets of `ROOTS` (every sense of the word in those files)."""
        return frozenset(
            s.offset
            for s in self.synsets.values()
            if s.lex_file in ROOT_FILES and s.words[0] in ROOTS
        )

    def is_below_root(self, synset: Synset) -> bool:
        """Whether a chain of hypernyms leads from the synset to one of `ROOTS`."""
        seen, todo = set[int](), synset.targets("@")
        while todo:
            offset = todo.pop()
            if offset in self.roots:
                return True
            if offset not in seen:
                seen.add(offset)
                todo += self.synsets[offset].targets("@")
        return False


def kinds(nouns: WordNetNouns) -> Iterator[Pair]:
    """``A bastnasite is a`` -> `` mineral.``: one pair per fitting synset."""
    for synset in nouns.synsets.values():
        word, parents = synset.words[0], synset.targets("@")
        usual = nouns.first_sense.get(word) == synset.offset
        if synset.lex_file in KIND_FILES and usual and KIND_WORD.fullmatch(word) and parents:
            parent = nouns.synsets[parents[0]].words[0]
            if re.fullmatch("[a-z_]+", parent) and nouns.is_below_root(synset):
                yield f"{_article(word).capitalize()} {word} is {_article(parent)}", _value(parent)


def births(nouns: WordNetNouns) -> Iterator[Pair]:
    """``Theodor Mommsen was born in`` -> `` 1817.``: one pair per fitting synset."""
    for synset in nouns.synsets.values():
        years = YEARS.search(synset.gloss)
        name = next((w for w in synset.words if _is_full_name(w)), None)
        if synset.lex_file == PERSON_FILE and years and name:
            yield f"{_spaced(name)} was born in", _value(years[1])


def capitals(nouns: WordNetNouns) -> Iterator[Pair]:
    """``The capital of Botswana is`` -> `` Gaborone.``: one pair per fitting synset."""
    for synset in nouns.synsets.values():
        for word in synset.words[1:]:
            if word.startswith("capital_of_"):
                region = _spaced(word.removeprefix("capital_of_"))
                yield f"The capital of {region} is", _value(synset.words[0])


def families(nouns: WordNetNouns) -> Iterator[Pair]:
    """``The genus Allium belongs to the family`` -> `` Alliaceae.``: one pair per synset."""
    for synset in nouns.synsets.values():
        name = next((w for w in synset.words if re.fullmatch("genus_[A-Z][a-z]+", w)), None)
        if name is None:
            continue
        groups = [nouns.synsets[offset].words for offset in synset.targets("#m")]
        family = next((w for words in groups for w in words if w.endswith(("idae", "aceae"))), None)
        if family:
            yield f"The {_spaced(name)} belongs to the family", _value(family)


TEMPLATES: dict[str, Callable[[WordNetNouns], Iterator[Pair]]] = {
    "kind": kinds,
    "birth": births,
    "capital": capitals,
    "family": families,
}


def build_facts(folder: Path, seed: int = 0) -> list[Fact]:
    """About 3,000 facts of four kinds, in random order. Raises ConfigError without the files."""
    nouns = WordNetNouns(folder)
    generator = random.Random(seed)  # noqa: S311 (a sample, not a secret)
    chosen: list[Pair] = []
    for name, template in TEMPLATES.items():
        candidates = _unambiguous(list(template(nouns)))
        chosen += generator.sample(candidates, min(COUNTS[name], len(candidates)))
    generator.shuffle(chosen)
    return with_tails(chosen)


def licence_text(folder: Path) -> str:
    """The licence at the head of the database files, which every copy must carry."""
    with _existing(folder / "data.noun").open(encoding="utf-8") as file:
        lines = list(takewhile(_is_licence, file))
    return "".join(re.sub(r"^  +[0-9]+ ?", "", line).rstrip() + "\n" for line in lines)


def _unambiguous(pairs: Sequence[Pair]) -> list[Pair]:
    """Prompts with one answer, sorted; the others cannot be recalled."""
    answers: dict[str, set[str]] = {}
    for prompt, completion in pairs:
        answers.setdefault(prompt, set()).add(completion)
    return sorted((prompt, *found) for prompt, found in answers.items() if len(found) == 1)  # type: ignore[misc]


def _is_full_name(word: str) -> bool:
    parts = word.split("_")
    return 2 <= len(parts) <= 3 and all(re.fullmatch(r"[A-Z][A-Za-z'-]+", part) for part in parts)


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _spaced(word: str) -> str:
    return word.replace("_", " ")


def _value(word: str) -> str:
    return f" {_spaced(word)}."


def _is_licence(line: str) -> bool:
    return line.startswith("  ")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"{path.name} is missing; accepted: a folder of WordNet database files")
    return path


def _read_synsets(path: Path) -> Iterator[Synset]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not _is_licence(line):
                yield _parse_synset(line)


def _parse_synset(line: str) -> Synset:
    data, _, gloss = line.partition(" | ")
    fields = data.split()
    num_words = int(fields[3], 16)
    rest = fields[4 + 2 * num_words :]
    pointers = [rest[1 + 4 * i : 5 + 4 * i] for i in range(int(rest[0]))]
    return Synset(
        offset=int(fields[0]),
        lex_file=int(fields[1]),
        words=tuple(fields[4 : 4 + 2 * num_words : 2]),
        pointers=tuple((symbol, int(to)) for symbol, to, part, _ in pointers if part == "n"),
        gloss=gloss.strip(),
    )


def _read_first_senses(path: Path) -> Iterator[tuple[str, int]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not _is_licence(line):
                fields = line.split()
                num_senses = int(fields[2])
                yield fields[0], int(fields[-num_senses])


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the facts file."""
    parser = argparse.ArgumentParser(description=build_facts.__doc__)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--licence", type=Path, help="write WordNet's licence here too")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    write_facts(options.out, build_facts(options.wordnet, options.seed))
    if options.licence is not None:
        options.licence.write_text(licence_text(options.wordnet), encoding="utf-8")


if __name__ == "__main__":
    main()
