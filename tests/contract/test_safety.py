"""What the code must never do, whoever writes it."""

import ast
import re

import pytest
from sources import CODE, PACKAGES, code_files, name, text_files, tree

LOADER = "server/loader.py"
UNSAFE_LOADERS = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
PRIVATE_PATH = re.compile(r"(?<![\w.~}])/(work|root|Users)/")


@pytest.mark.parametrize("path", code_files(*PACKAGES), ids=name)
def test_models_are_loaded_at_one_site(path) -> None:
    calls = {n.attr for n in ast.walk(tree(path)) if isinstance(n, ast.Attribute)}
    if name(path) != LOADER:
        assert "from_pretrained" not in calls


@pytest.mark.parametrize("path", code_files(*CODE), ids=name)
def test_remote_code_is_never_trusted(path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


@pytest.mark.parametrize("path", code_files(*CODE), ids=name)
def test_no_file_format_that_runs_code(path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            assert not modules & UNSAFE_LOADERS
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) != "torch.load"
            assert not any(k.arg == "allow_pickle" and _is_true(k.value) for k in node.keywords)


def test_no_path_of_a_developers_machine() -> None:
    found = [
        f"{name(path)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if PRIVATE_PATH.search(line)
    ]
    assert not found


def _is_true(node: ast.expr) -> bool:
    return not (isinstance(node, ast.Constant) and node.value is False)
