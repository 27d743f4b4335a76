"""The reference pages say what the code says."""

import importlib.util
import re

import pytest
from sources import ROOT

from server.config import Settings
from server.flags import flag

README = (ROOT / "README.md").read_text(encoding="utf-8")


def _reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["settings.md", "metrics.md"])
def test_page_is_up_to_date(page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == _reference().PAGES[page](), "run: python docs/reference.py"


def test_readme_names_no_flag_that_does_not_exist() -> None:
    flags = {flag(name) for name in Settings.model_fields}
    named = set(re.findall(r"`(--[a-z-]+)", README))
    assert named <= flags
