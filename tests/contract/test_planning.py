"""docs/planning.md: its example is what the command prints, and every flag is explained."""

import re
import shlex

from sources import ROOT

from server import cli
from server.plan_options import OPTIONS

PAGE = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")


def _block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL).group(1)


def test_example_prints_what_the_page_shows(capsys) -> None:
    _, *arguments = shlex.split(_block("sh").replace("\\\n", " "))
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == _block("text")


def test_page_names_exactly_the_flags_there_are() -> None:
    flags = {option.flag for option in OPTIONS} | {"--json", "--check-host"}
    assert set(re.findall(r"--[a-z][a-z-]*", PAGE)) == flags


def test_page_explains_each_flag_as_the_help_does() -> None:
    for option in OPTIONS:
        assert f"| `{option.flag} {option.metavar}` | {option.text} |" in PAGE
