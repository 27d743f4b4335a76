"""What a package offers and what it says it offers are the same."""

import importlib
import pkgutil
import types

import pytest

import engram_core
import server


def _packages() -> list[str]:
    found = []
    for root in (engram_core, server):
        found.append(root.__name__)
        modules = pkgutil.walk_packages(root.__path__, f"{root.__name__}.")
        found += [module.name for module in modules if module.ispkg]
    return found


@pytest.mark.parametrize("package_name", _packages())
def test_names_and_all_agree(package_name: str) -> None:
    package = importlib.import_module(package_name)
    offered = getattr(package, "__all__", [])
    assert list(offered) == sorted(set(offered)), "__all__ is sorted and has no doubles"
    for public in offered:
        assert getattr(package, public) is not None
    held = {n for n, v in vars(package).items() if _is_public(n, v)}
    assert held <= set(offered)


def _is_public(name: str, value: object) -> bool:
    """A class or function of ours; what a package borrows from elsewhere is not its offer."""
    home = str(getattr(value, "__module__", "")).split(".")[0]
    is_ours = home in (engram_core.__name__, server.__name__)
    return is_ours and not name.startswith("_") and not isinstance(value, types.ModuleType)
