"""How the code is cut: small files, small functions, one public class per file."""

import ast
from statistics import median

import pytest
from sources import CODE, code_files, name, tree

MAX_FILE_LINES = 400
MAX_MEDIAN_FUNCTION_LINES = 10
LONG_FUNCTION_LINES = 30
MAX_LONG_SHARE = 0.1

# files whose one subject is a family of small classes
CLASS_FAMILIES: dict[str, str] = {
    "benchmarks/contenders/llama_library.py": "the C interface of llama.cpp",
    "engram_core/accelerator.py": "an accelerator and its event",
    "engram_core/cpu_device.py": "the CPU as a device and its event, which has always happened",
    "engram_core/errors.py": "the exception tree",
    "engram_core/retrofit/row_parameters.py": "trained rows and a batch of them",
    "engram_core/stats.py": "the core's statistics",
    "server/engine/types.py": "what crosses the engine's border",
    "server/logs.py": "the two forms of a log line",
    "server/streaming.py": "frames, and the response that writes them",
    "server/wire/schemas.py": "request bodies",
}
PLAIN_BASES = {"Protocol", "NamedTuple", "Enum", "StrEnum", "IntEnum"}
VAGUE_NAMES = {"manager", "helper", "helpers", "util", "utils", "common", "misc"}


@pytest.mark.parametrize("path", code_files(*CODE), ids=name)
def test_file_is_short_and_says_what_it_is(path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MAX_FILE_LINES
    assert ast.get_docstring(tree(path)), "a module starts with what it does"
    assert not VAGUE_NAMES & set(path.stem.split("_"))


@pytest.mark.parametrize("path", code_files(*CODE), ids=name)
def test_one_public_class_per_file(path) -> None:
    public = [c.name for c in _classes(path) if not c.name.startswith("_")]
    main = [c for c in public if not _is_companion(c, path)]
    if name(path) not in CLASS_FAMILIES:
        assert len(main) <= 1, f"more than one public class: {', '.join(main)}"


def test_families_exist() -> None:
    assert set(CLASS_FAMILIES) <= {name(path) for path in code_files(*CODE)}


def test_functions_are_small() -> None:
    lengths = [length for path in code_files(*CODE) for _, length in _function_lines(path)]
    share = sum(length >= LONG_FUNCTION_LINES for length in lengths) / len(lengths)
    assert median(lengths) <= MAX_MEDIAN_FUNCTION_LINES
    assert share <= MAX_LONG_SHARE


def _classes(path) -> list[ast.ClassDef]:
    return [node for node in tree(path).body if isinstance(node, ast.ClassDef)]


def _is_companion(class_name: str, path) -> bool:
    """Plain data or an error that belongs to the file's class, not a second responsibility."""
    node = next(c for c in _classes(path) if c.name == class_name)
    bases = {ast.unparse(base) for base in node.bases}
    decorated = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
    is_error = any(base.endswith(("Error", "Exception")) for base in bases)
    return decorated or is_error or bool(bases & PLAIN_BASES)


def _function_lines(path) -> list[tuple[str, int]]:
    """Each function with its length in lines, docstring not counted."""
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node, clean=False):
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            found.append((node.name, lines))
    return found
