"""The pins in constraints/ are complete, exact and what the tests really ran with."""

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from sources import ROOT

FOLDER = ROOT / "constraints"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TORCH = {
    "cpu.txt": {"torch": "2.13.0"},
    "cuda.txt": {"torch": "2.13.0"},
    "npu.txt": {"torch": "2.12.0", "torch-npu": "2.12.0"},
}


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(file_name: str) -> dict[str, str]:
    lines = (FOLDER / file_name).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line and not line.startswith(("#", "-c "))]
    pairs = [line.split("==") for line in kept]
    assert all(len(pair) == 2 for pair in pairs), f"{file_name}: every line is an exact pin"
    return {_key(name): version for name, version in pairs}


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": e}) for e in {"", *extras})


def _closure() -> dict[str, str]:
    """Every installed distribution that the project and its dev tools pull in."""
    found: dict[str, str] = {}
    queue = [Requirement(r) for r in PROJECT["dependencies"]]
    queue += [Requirement(r) for r in PROJECT["optional-dependencies"]["dev"]]
    while queue:
        requirement = queue.pop()
        if _key(requirement.name) in found or not _applies(requirement, set()):
            continue
        distribution = importlib.metadata.distribution(requirement.name)
        found[_key(requirement.name)] = distribution.version.split("+")[0]
        needed = [Requirement(r) for r in distribution.requires or []]
        for inner in (r for r in needed if _applies(r, requirement.extras)):
            inner.marker = None  # already evaluated with the extras that were asked for
            queue.append(inner)
    return found


@pytest.mark.parametrize(("file_name", "torch"), TORCH.items())
def test_each_device_names_its_torch(file_name: str, torch: dict[str, str]) -> None:
    assert "-c common.txt" in (FOLDER / file_name).read_text(encoding="utf-8").splitlines()
    assert _pins(file_name) == torch


def test_pins_are_what_is_installed() -> None:
    installed = _closure()
    pins = _pins("common.txt") | _pins("cpu.txt")
    wrong = {name: v for name, v in installed.items() if pins.get(name) != v}
    lines = "\n".join(f"{name}=={version}" for name, version in sorted(wrong.items()))
    assert not wrong, f"installed, but not pinned like this in constraints/:\n{lines}"


def test_pins_satisfy_the_declared_ranges() -> None:
    pins = _pins("common.txt") | _pins("cpu.txt")
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[_key(requirement.name)]), text


def test_extras_agree_with_the_constraints() -> None:
    for extra, file_name in (("cuda", "cuda.txt"), ("npu", "npu.txt")):
        pinned = dict(r.split("==") for r in PROJECT["optional-dependencies"][extra])
        assert {_key(name): version for name, version in pinned.items()} == _pins(file_name)


def test_common_pins_name_no_torch() -> None:
    """Only the device's own file may, or two files would contradict each other."""
    assert not {"torch", "torch-npu"} & set(_pins("common.txt"))
