"""Which module may import which: the layers, and what loads at run time."""

import ast
import subprocess
import sys

import pytest
from sources import CODE, PACKAGES, ROOT, code_files, name, tree

# external packages that only the named modules may import
ONLY_IMPORTERS = {
    "torch_npu": {"engram_core/device.py"},
    "prometheus_client": {"server/metrics.py"},
    "pyarrow": {"engram_core/store/flight.py"},
}
TORCH_FREE = ("server.engine.types", "server.engine.scheduler", "server.engine.inbox")


def test_layers_and_forbidden_imports() -> None:
    # in a process of its own: it configures logging, and would silence every logger there is
    code = "import sys, importlinter.cli as cli; sys.exit(cli.lint_imports(no_cache=True))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", TORCH_FREE)
def test_module_runs_without_torch(module: str) -> None:
    script = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 0, f"importing {module} loads torch\n{done.stderr.decode()}"


@pytest.mark.parametrize("package", ONLY_IMPORTERS)
def test_package_has_one_importer(package: str) -> None:
    importers = {name(p) for p in code_files(*PACKAGES) if package in _imported_packages(p)}
    assert importers <= ONLY_IMPORTERS[package]


def test_compiled_code_has_its_places() -> None:
    importers = {name(p) for p in code_files(*PACKAGES) if "numba" in _imported_packages(p)}
    kernels = {p for p in importers if p.startswith("server/engine/native/")}
    assert importers - kernels == {"engram_core/compiled.py"}


def test_core_imports_transformers_only_to_splice_and_to_train() -> None:
    importers = {
        name(p) for p in code_files("engram_core") if "transformers" in _imported_packages(p)
    }
    allowed = {p for p in importers if p.startswith("engram_core/retrofit/")}
    assert importers - allowed <= {"engram_core/splice.py"}


def test_benchmarks_are_not_imported_by_the_product() -> None:
    for path in code_files(*PACKAGES):
        assert "benchmarks" not in _imported_packages(path), name(path)
        assert "tests" not in _imported_packages(path), name(path)


def test_the_rules_read_real_files() -> None:
    assert len(code_files(*CODE)) > 10


def _imported_packages(path) -> set[str]:
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found
