"""`engram-server plan`: from flags to a plan, and from a plan to text.

Reads the token file and, when asked, this machine's limits; all arithmetic is the core's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from engram_core.errors import ConfigError
from engram_core.planner import (
    CountedAccess,
    HostBudget,
    MemoryShape,
    Plan,
    RecordFormat,
    Target,
    ZipfAccess,
    plan,
)
from engram_core.planner.access import AccessPattern
from engram_core.planner.host_checks import HostCheck, check_host
from engram_core.planner.host_limits import HostLimits
from engram_core.planner.shape import MAX_COLUMNS
from server.config import Settings
from server.plan_options import parse_options
from server.plan_report import render
from server.token_file import read_tokens


def run_plan(given: Mapping[str, Any]) -> str:
    """The plan for the given flags, as a table or as JSON.

    Raises:
        ConfigError: a value or a file is not accepted. IdRangeError: the tokenizer does not know
            an id.
    """
    values = parse_options(given)
    shape = _shape(values)
    made = plan(shape, _of(HostBudget, values), _of(Target, values), _access(shape, values))
    checks = _host_checks(made) if given["check_host"] else ()
    if given["json"]:
        return json.dumps(made.to_dict() | {"host": [asdict(c) for c in checks]}, indent=2)
    return render(shape, made, checks)


def _shape(values: Mapping[str, Any]) -> MemoryShape:
    record = RecordFormat(values["dtype"], values["row_dim"])
    rows: Any = values.get("rows")
    per_head: Any = values.get("rows_per_head")
    num_layers: Any = values.get("num_layers", None if rows is None else len(rows))
    orders, heads = values["orders"], values["num_heads"]
    if (rows is None) == (per_head is None):
        raise ConfigError(f"rows is {rows} and rows_per_head {per_head}; accepted: one of them")
    if per_head is not None:
        return MemoryShape.from_rows_per_head(per_head, num_layers, orders, heads, record)
    if num_layers != len(rows):
        if len(rows) != 1 or not 1 <= num_layers <= MAX_COLUMNS:
            raise ConfigError(
                f"num_layers is {num_layers} and rows has {len(rows)} numbers; accepted: one "
                f"number of rows for 1 to {MAX_COLUMNS} layers, or one for each layer"
            )
        rows = rows * num_layers
    return MemoryShape(rows, orders, heads, record)


def _access(shape: MemoryShape, values: Mapping[str, Any]) -> AccessPattern:
    exponent: Any = values.get("zipf")
    file, tokenizer = (_path(values.get(name)) for name in ("token_file", "tokenizer"))
    if (exponent is None) == (file is None):
        named = repr(file.name) if file else None
        raise ConfigError(f"zipf is {exponent} and token_file {named}; accepted: one of them")
    if file is not None:
        return CountedAccess(shape, *read_tokens(file, tokenizer))
    if tokenizer is not None:
        raise ConfigError(f"tokenizer is {tokenizer.name!r}; accepted: only with token_file")
    return ZipfAccess(shape, exponent)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _of(kind: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass from those values that are its fields."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def _host_checks(made: Plan) -> tuple[HostCheck, ...]:
    limits = (Settings.model_fields[name].default for name in ("max_num_seqs", "max_queue_len"))
    return check_host(made, HostLimits.read(), connections=sum(limits))
