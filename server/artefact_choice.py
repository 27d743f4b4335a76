"""Chooses the Engram artefact to serve: by name, by path, or the one made for the backbone.

A checkpoint that is read in place records no backbone: it is found by name and path alone. Knows
folders and manifests; opens no tables and loads no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path

from engram_core.errors import ArtefactError
from engram_core.tables.in_place import is_in_place
from engram_core.tables.manifest import MANIFEST_NAME, Manifest
from server.load_errors import LoadError

AUTO = "auto"
NONE = "none"


def choose_artefact(choice: str, engram_dir: Path | None, fingerprint: str) -> Path | None:
    """The artefact's folder, None for ``"none"``.

    Args:
        choice: ``"auto"``, ``"none"``, a folder, or a name inside `engram_dir` or the package.
        engram_dir: the operator's folder of artefacts.
        fingerprint: of the backbone, for ``"auto"``.

    Raises:
        LoadError: there is no such artefact; for ``"auto"``, none was made for the backbone.
    """
    if choice == NONE:
        return None
    shelves = _shelves(engram_dir)
    if choice == AUTO:
        return _matching(shelves, fingerprint)
    return _named(choice, engram_dir)


def named_artefact(name: str, engram_dir: Path | None) -> Path:
    """The folder of an artefact that is named by path or name.

    Raises:
        LoadError: it does not exist.
    """
    return _named(name, engram_dir)


def shelved_artefact(name: str, engram_dir: Path | None) -> Path:
    """The folder of an artefact by its name alone: a request may not name paths.

    Raises:
        LoadError: it is no plain name, or there is no such artefact.
    """
    shelves = _shelves(engram_dir)
    known = {folder.name: folder for folder in _folders(shelves, is_artefact)}
    if name not in known:
        raise LoadError(
            f"there is no Engram artefact {name[:100]!r}; accepted: {', '.join(sorted(known))}"
        )
    return known[name]


def list_artefacts(choice: str, engram_dir: Path | None) -> list[Path]:
    """The folders that `choose_artefact` would choose from.

    Raises:
        LoadError: the named artefact does not exist.
    """
    if choice == NONE:
        return []
    shelves = _shelves(engram_dir)
    return list(_folders(shelves, is_native)) if choice == AUTO else [_named(choice, engram_dir)]


def find_artefact(name: str, engram_dir: Path | None) -> Path | None:
    """The folder of an artefact by its path, or by its name in `engram_dir` or the package."""
    named = [Path(name), *(shelf / name for shelf in _shelves(engram_dir))]
    return next((folder for folder in named if is_artefact(folder)), None)


def is_native(folder: Path) -> bool:
    """Whether a folder has a manifest, as this project's own artefacts have."""
    return (folder / MANIFEST_NAME).is_file()


def is_artefact(folder: Path) -> bool:
    """Whether a folder can be served: a native artefact, or a checkpoint read in place."""
    return is_native(folder) or is_in_place(folder)


def _shelves(engram_dir: Path | None) -> list[Path]:
    return [packaged_folder(), *([engram_dir] if engram_dir else [])]


def _named(choice: str, engram_dir: Path | None) -> Path:
    found = find_artefact(choice, engram_dir)
    if found is None:
        raise LoadError(
            f"the Engram artefact {Path(choice).name!r} does not exist; accepted for --engram: "
            "an artefact's folder, its name inside --engram-dir, auto or none"
        )
    return found


def packaged_folder() -> Path:
    """Where the artefacts lie that are installed with the server."""
    return Path(str(resources.files("server.data")))


def _matching(shelves: Sequence[Path], fingerprint: str) -> Path:
    unreadable: list[str] = []
    for folder in _folders(shelves, is_native):
        try:
            if Manifest.read(folder).backbone.fingerprint == fingerprint:
                return folder
        except ArtefactError:
            unreadable.append(folder.name)  # another one may still match; named below if none does
    seen = f" (cannot be read: {', '.join(unreadable)})" if unreadable else ""
    raise LoadError(
        f"no Engram artefact was made for this model{seen}; name one with --engram PATH, or "
        "serve without a memory: --engram none"
    )


def _folders(shelves: Sequence[Path], is_wanted: Callable[[Path], bool]) -> Iterator[Path]:
    for shelf in shelves:
        if shelf.is_dir():
            visible = (p for p in shelf.iterdir() if not p.name.startswith("."))  # not being made
            yield from sorted(folder for folder in visible if is_wanted(folder))
