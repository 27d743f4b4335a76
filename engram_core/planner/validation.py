"""Checks of what a plan is asked for: one sentence with the field, its value and what is accepted.

Knows numbers only; what they mean is said by the classes that call this.
"""

from __future__ import annotations

import math

from engram_core.errors import ConfigError


def require(ok: bool, name: str, value: object, accepted: str) -> None:
    """Raise ConfigError unless `ok`."""
    if not ok:
        raise ConfigError(f"{name} is {value!r}; accepted: {accepted}")


def require_whole(name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigError unless `value` is a whole number from `low` to `high`."""
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(ok, name, value, f"a whole number from {low} to {high}")


def require_number(name: str, value: object, low: float, high: float) -> None:
    """Raise ConfigError unless `value` is a number from `low` to `high`."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    ok = ok and math.isfinite(value) and low <= value <= high  # type: ignore[arg-type, operator]
    require(ok, name, value, f"a number from {low:g} to {high:g}")
