"""Which artefact is served: none, a named one, or the one made for the backbone."""

from dataclasses import replace

import pytest
from artefacts import BACKBONE, tiny_content
from in_place import write_checkpoint

from engram_core.tables import write_artefact
from server import artefact_choice
from server.artefact_choice import (
    choose_artefact,
    list_artefacts,
    packaged_folder,
    shelved_artefact,
)
from server.load_errors import LoadError

MINE = "a" * 64


@pytest.fixture
def shelf(tmp_path):
    for name, fingerprint in (("first", BACKBONE.fingerprint), ("mine", MINE)):
        backbone = replace(BACKBONE, fingerprint=fingerprint)
        write_artefact(tmp_path / "shelf" / name, tiny_content(backbone=backbone))
    (tmp_path / "shelf" / "notes").mkdir()
    return tmp_path / "shelf"


def test_none_means_no_memory(shelf) -> None:
    assert choose_artefact("none", shelf, MINE) is None


def test_auto_finds_the_one_made_for_the_backbone(shelf) -> None:
    assert choose_artefact("auto", shelf, MINE) == shelf / "mine"


def test_auto_prefers_what_is_installed(shelf, monkeypatch, tmp_path) -> None:
    installed = tmp_path / "data"
    write_artefact(installed / "default", tiny_content())
    monkeypatch.setattr(artefact_choice, "packaged_folder", lambda: installed)
    assert choose_artefact("auto", shelf, BACKBONE.fingerprint) == installed / "default"
    assert choose_artefact("default", shelf, MINE) == installed / "default"


@pytest.mark.parametrize("folder", ["shelf", "missing", None])
def test_auto_without_a_match_names_the_way_out(shelf, tmp_path, folder) -> None:
    engram_dir = tmp_path / folder if folder else None
    with pytest.raises(LoadError, match="--engram none"):
        choose_artefact("auto", engram_dir, "b" * 64)


def test_auto_names_artefacts_it_could_not_read(shelf) -> None:
    (shelf / "first" / "manifest.json").write_text("{")
    assert choose_artefact("auto", shelf, MINE) == shelf / "mine"
    with pytest.raises(LoadError, match="cannot be read: first"):
        choose_artefact("auto", shelf, "b" * 64)


def test_by_name_and_by_path(shelf) -> None:
    assert choose_artefact("first", shelf, MINE) == shelf / "first"
    assert choose_artefact(str(shelf / "first"), None, MINE) == shelf / "first"


@pytest.mark.parametrize("choice", ["nothing", "notes", "/far/away/nothing"])
def test_an_unknown_one_is_named_without_its_path(shelf, choice) -> None:
    with pytest.raises(LoadError, match=r"'(nothing|notes)' does not exist") as caught:
        choose_artefact(choice, shelf, MINE)
    assert "/far" not in str(caught.value)


def test_a_checkpoint_is_found_by_name_and_never_by_auto(shelf) -> None:
    folder = write_checkpoint(shelf / "v41")
    assert choose_artefact("v41", shelf, MINE) == folder
    assert choose_artefact(str(folder), None, MINE) == folder
    assert shelved_artefact("v41", shelf) == folder
    assert list_artefacts("v41", shelf) == [folder]
    assert folder not in list_artefacts("auto", shelf)
    with pytest.raises(LoadError, match="no Engram artefact was made for this model; name one"):
        choose_artefact("auto", shelf, "b" * 64)


def test_packaged_folder_is_there() -> None:
    assert packaged_folder().is_dir()
