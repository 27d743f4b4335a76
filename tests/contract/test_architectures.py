"""The page of architectures says what the check at load finds."""

import importlib.util

import pytest
from sources import ROOT

PAGE = ROOT / "docs" / "architectures.md"


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("architectures", ROOT / "docs/architectures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_up_to_date(module):
    assert PAGE.read_text(encoding="utf-8") == module.page(), "run: python docs/architectures.py"


def test_every_listed_family_agrees_or_is_refused(module):
    page = PAGE.read_text(encoding="utf-8")
    served, refused = page.split("Refused, with")
    assert served.count("| yes |") >= len(module.FAMILIES) >= 14
    assert "| no | 2:4" not in served
    assert all(f"\n| {family} |" in refused for family in module.NOT_SERVED)
