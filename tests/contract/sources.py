"""The project's own files, as the contract tests read them."""

import ast
import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("engram_core", "server")
CODE = (*PACKAGES, "benchmarks")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".cuda", ".npu", ""}
SKIPPED_FOLDERS = {"build", "dist", "shared", "__pycache__", "golden", "node_modules"}


def code_files(*folders: str) -> list[Path]:
    """Python files below the named top folders, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name(path: Path) -> str:
    """The path as a reader of the repository knows it."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def text_files() -> list[Path]:
    """Every text that the project publishes (generated and vendored folders left out)."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        here = Path(folder)
        folders[:] = [f for f in folders if _is_published(f)]
        found += [here / f for f in files if (here / f).suffix in TEXT_SUFFIXES]
    return sorted(path for path in found if path.name != ".git")


def _is_published(folder: str) -> bool:
    if folder.startswith("."):
        return folder == ".ci"
    return folder not in SKIPPED_FOLDERS and not folder.endswith(".egg-info")
