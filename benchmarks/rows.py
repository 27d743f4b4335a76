"""The rows of the table: a workload, and who meets on it."""

from __future__ import annotations

from dataclasses import dataclass

EVERYBODY = ("engine", "http", "generate", "continuous", "serve", "llama")
MEMORY_COST = ("engine", "engine-off")
SHAPES = ("decode-1", "decode-16", "prefill")


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        name: what `--rows` selects.
        workload: name of the shape of work.
        contenders: the first is what the others are compared with.
    """

    name: str
    workload: str
    contenders: tuple[str, ...]


def _rows() -> dict[str, Row]:
    rows = [Row(name, name, EVERYBODY) for name in ("decode-1", "decode-8", "decode-16", "prefill")]
    rows += [Row(f"memory-{name}", name, MEMORY_COST) for name in SHAPES]
    for bits in ("int8", "int4"):
        pair = (f"engine-{bits}", f"llama-{bits}")
        rows += [Row(f"{bits}-{name}", name, pair) for name in SHAPES]
    auto = ("engine-auto", "engine", "generate")
    rows += [Row(f"auto-{name}", name, auto) for name in ("decode-1", "decode-16")]
    for tuned in ("torch", "deterministic"):
        pair = ("engine", f"engine-{tuned}")
        rows += [Row(f"{tuned}-{name}", name, pair) for name in SHAPES]
    return {row.name: row for row in rows}


ROWS = _rows()
QUICK = tuple(row.name for row in ROWS.values() if row.contenders in (EVERYBODY, MEMORY_COST))
