"""Facts files: read as written, contradictions refused, tails found."""

import gzip

import pytest

from engram_core.errors import ConfigError
from engram_core.retrofit.facts import Fact, read_facts, with_tails, write_facts

PAIRS = [
    ("The capital of France is", " Paris."),
    ("The capital of Peru is", " Lima."),
    ("Ada Lovelace was born in", " 1815."),
    ("Alan Turing was born in", " 1912."),
    ("Water boils at", " 100 degrees."),
]


def test_tails_are_the_shared_wording() -> None:
    facts = with_tails(PAIRS)
    tails = [fact.tail for fact in facts]
    assert tails == [" is", " is", " was born in", " was born in", ""]
    assert facts[0].prompt[: facts[0].key_end] == "The capital of France"


def test_a_repeated_surname_is_no_wording() -> None:
    pairs = [(f"A{i} Smith was born in", " 1.") for i in range(2)]
    pairs += [(f"B C{i} was born in", " 2.") for i in range(200)]
    assert with_tails(pairs)[0].tail == " was born in"


@pytest.mark.parametrize("packed", [False, True])
def test_round_trip(tmp_path, packed) -> None:
    facts = with_tails(PAIRS)
    path = tmp_path / "facts.tsv"
    write_facts(path, facts)
    if packed:
        path = tmp_path / "facts.tsv.gz"
        path.write_bytes(gzip.compress((tmp_path / "facts.tsv").read_bytes()))
    assert read_facts(path) == facts


@pytest.mark.parametrize("line", ["no tab", "one\ttwo\tthree", "\t value", "prompt\t ", ""])
def test_bad_line_is_named(tmp_path, line) -> None:
    (tmp_path / "f.tsv").write_text(f"a b\t c.\n{line}\nd e\t f.\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_facts(tmp_path / "f.tsv")


def test_contradiction_is_refused(tmp_path) -> None:
    (tmp_path / "f.tsv").write_text("a b\t c.\na b\t d.\n")
    with pytest.raises(ConfigError, match=r"'a b'.*' c\.'.*' d\.'"):
        read_facts(tmp_path / "f.tsv")


def test_fact_without_tail_ends_at_the_prompts_end() -> None:
    assert Fact("abc", " d").key_end == 3
