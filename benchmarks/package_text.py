"""English text that this Python carries: much more than one manual, and no paragraph twice.

The topics of the interactive help, then what the docstrings of the standard library and of the
installed packages say, file by file in the order of their names. How much there is depends on the
installation. Knows no tokens.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmarks.prompt_source import reference_text

_LEAST_WORDS = 30  # shorter paragraphs are headings, signatures and lists of names
_PROMPT = ">>>"  # examples are no English
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages"}


def package_text(num_chars: int) -> str:
    """At least so many characters. Raises ValueError when all packages together have fewer."""
    seen: set[str] = set()
    found: list[str] = []
    missing = num_chars
    for paragraph in _paragraphs():
        if paragraph in seen:
            continue
        seen.add(paragraph)
        found.append(paragraph)
        missing -= len(paragraph) + 2
        if missing <= 0:
            return "\n\n".join(found)
    raise ValueError(f"{num_chars - missing} characters of text are installed, not {num_chars}")


def _paragraphs() -> Iterator[str]:
    yield from _split(reference_text())
    for folder in _folders():
        for path in sorted(folder.rglob("*.py")):
            if not _LEFT_OUT & set(path.relative_to(folder).parts):
                for text in _docstrings(path):
                    yield from _split(text)


def _folders() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths["stdlib"]), Path(paths["purelib"])]


def _split(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if line.count(" ") >= _LEAST_WORDS and _PROMPT not in line:
            yield line


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):
            module = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):  # not of this Python
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(module):
        if isinstance(node, documented):
            yield ast.get_docstring(node) or ""
