"""Facts out of WordNet's file format, on a database of a dozen synsets."""

import pytest

from engram_core.errors import ConfigError
from engram_core.retrofit.wordnet import WordNetNouns, build_facts, licence_text, main

LICENCE = "  1 This software is provided under a licence.  \n  2   \n  3 Keep it.  \n"
SYNSETS = [
    ("03", ["animal"], [], "a living thing"),  # 0
    ("05", ["bird"], [("@", 0)], "has feathers"),  # 1
    ("05", ["heron"], [("@", 1)], "wades"),  # 2
    ("05", ["egret"], [("@", 2)], "white; (1901-1902)"),  # 3
    ("18", ["Turing", "Alan_Turing"], [("@i", 0)], "mathematician (1912-1954)"),  # 4
    ("18", ["Homer"], [], "no full name (1400-1450)"),  # 5
    ("15", ["Lima", "capital_of_Peru"], [], "on the coast"),  # 6
    ("15", ["La_Paz", "capital_of_Bolivia"], [], "high up"),  # 7
    ("15", ["Sucre", "capital_of_Bolivia"], [], "another answer: left out"),  # 8
    ("05", ["Ardeidae", "family_Ardeidae"], [], "herons"),  # 9
    ("05", ["Egretta", "genus_Egretta"], [("#m", 9)], "egrets"),  # 10
    ("06", ["hammer"], [], "below no root"),  # 11
]


@pytest.fixture
def folder(tmp_path):
    lines, index = [LICENCE], [LICENCE]
    for number, (file, words, pointers, gloss) in enumerate(SYNSETS):
        spelled = " ".join(f"{word} 0" for word in words)
        links = "".join(f" {symbol} {to:08d} n 0000" for symbol, to in pointers)
        head = f"{number:08d} {file} n {len(words):02x} {spelled} {len(pointers):03d}{links}"
        lines.append(f"{head} | {gloss}\n")
        index += [f"{word.lower()} n 1 0 1 0 {number:08d}\n" for word in words]
    (tmp_path / "data.noun").write_text("".join(lines))
    (tmp_path / "index.noun").write_text("".join(index))
    return tmp_path


def test_every_template(folder) -> None:
    facts = {fact.prompt: fact.completion for fact in build_facts(folder)}
    assert facts == {
        "A bird is an": " animal.",
        "A heron is a": " bird.",
        "An egret is a": " heron.",
        "Alan Turing was born in": " 1912.",
        "The capital of Peru is": " Lima.",
        "The genus Egretta belongs to the family": " Ardeidae.",
    }


def test_the_seed_decides_the_order(folder) -> None:
    assert build_facts(folder, 1) == build_facts(folder, 1)


def test_parsed_pointers(folder) -> None:
    nouns = WordNetNouns(folder)
    assert nouns.synsets[10].targets("#m") == [9]
    assert nouns.is_below_root(nouns.synsets[3])
    assert not nouns.is_below_root(nouns.synsets[11])


def test_command_writes_facts_and_licence(folder, tmp_path) -> None:
    out, licence = tmp_path / "f.tsv", tmp_path / "LICENCE"
    main(["--wordnet", str(folder), "--out", str(out), "--licence", str(licence)])
    assert "The capital of Peru is\t Lima.\n" in out.read_text()
    assert licence.read_text().startswith("This software is provided under a licence.\n\nKeep it.")


def test_licence_ends_where_the_database_starts(folder) -> None:
    assert "bird" not in licence_text(folder)


def test_missing_files_are_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"data\.noun is missing"):
        build_facts(tmp_path)
