"""What values may be: checks that raise ConfigError."""

from __future__ import annotations

import operator
from typing import Any

from ipcbench.errors import ConfigError


def require_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(field, value, choices)


def require_range(field: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless `low` ≤ `value` ≤ `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(field, value, f"{low:,} to {high:,}")


def whole_number(field: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int; raise ConfigError unless it is a whole number, of any type, from `low` to `high`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or not low <= number <= high:
        raise ConfigError(field, value, f"{low:,} to {high:,}, a whole number")
    return number


def require_some(field: str, values: tuple[object, ...]) -> None:
    """Raise ConfigError unless there is a value, and none is there twice."""
    if not values or len(set(values)) != len(values):
        raise ConfigError(field, ",".join(map(str, values)), "one or more, each once")
