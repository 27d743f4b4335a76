"""The example settings files are accepted as they are, and say what they are for."""

from pathlib import Path

import pytest
import yaml
from sources import ROOT, name

from server.config import Settings

FILES = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch) -> None:
    for setting in Settings.model_fields:
        monkeypatch.delenv(f"ENGRAM_SERVER_{setting}".upper(), raising=False)


def test_there_is_one_file_per_device() -> None:
    assert [path.stem for path in FILES] == ["cpu", "cuda", "npu"]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_setting_of_the_file_arrives(path: Path) -> None:
    settings = Settings(config=path)
    for key, value in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        assert getattr(settings, key) == value
    assert settings.device == path.stem


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_flag_wins_over_the_file(path: Path) -> None:
    assert Settings(config=path, port=1234).port == 1234
