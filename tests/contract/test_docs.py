"""What the documents promise exists: make targets, links, commands, extras."""

import re
import tomllib

import pytest
from sources import ROOT, name, text_files

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCS = [path for path in text_files() if path.suffix == ".md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _targets() -> list[str]:
    return re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE).group(1).split()


def _commands(text: str) -> list[str]:
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_readme_starts_with_the_two_commands() -> None:
    assert [re.split(r"\s+#", c)[0] for c in _commands(README)[:2]] == ["make serve", "make test"]


@pytest.mark.parametrize("target", _targets())
def test_documents_name_every_make_target(target: str) -> None:
    texts = [README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")]
    assert any(f"make {target}" in text for text in texts)


def test_documents_name_no_other_make_target() -> None:
    for path in DOCS:
        named = set(re.findall(r"`make ([a-z-]+)", path.read_text(encoding="utf-8")))
        assert named <= set(_targets()), name(path)


@pytest.mark.parametrize("target", ["check", "test", "test-system", "test-slow"])
def test_ci_runs_the_target(target: str) -> None:
    assert re.search(rf"for target in .*\b{target}\b", CI)


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_links_lead_somewhere(path) -> None:
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" not in link and not link.startswith("mailto:"):
            assert (path.parent / link).exists(), link


def test_index_lists_every_document() -> None:
    folder = ROOT / "docs"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    written = {p.relative_to(folder).as_posix() for p in folder.rglob("*.md")} - {"README.md"}
    assert written <= listed


@pytest.mark.parametrize("extra", ["cuda", "npu", "remote", "compress", "dev"])
def test_documents_name_every_extra(extra: str) -> None:
    assert any(f"[{extra}]" in path.read_text(encoding="utf-8") for path in DOCS)
    assert extra in PROJECT["optional-dependencies"]


def test_changelog_names_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {PROJECT['version']}" in changelog
