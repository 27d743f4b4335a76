"""Byte sizes as people write them: ``2MB``, ``512 MiB``, ``1073741824``."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_PATTERN = re.compile(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]*)\s*")


def parse_size(value: Any) -> Any:
    """Bytes for a text such as ``"1.5GiB"``; anything that is not a text passes through.

    Raises:
        ValueError: the text is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _PATTERN.fullmatch(value)
    if match is None or match[2].upper() not in UNITS:
        raise ValueError("accepted: bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    return int(float(match[1]) * UNITS[match[2].upper()])


def format_size(num_bytes: int) -> str:
    """The largest binary unit that keeps the number short: ``1.5 GiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes >= UNITS[unit.upper()]:
            return f"{num_bytes / UNITS[unit.upper()]:.4g} {unit}"
    return f"{num_bytes} bytes"


ByteSize = Annotated[int, BeforeValidator(parse_size)]
