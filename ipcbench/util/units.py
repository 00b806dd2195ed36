"""Sizes, times and rates as text, parsed and formatted. KiB is 1024 bytes, MiB 1024²; kB is 1000 bytes, MB 1000²."""

from __future__ import annotations

import math
import re

from ipcbench.errors import ConfigError

_FACTORS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ns|us|µs|ms|s|min|h)?")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, None: 1.0}
_MOST_UNITS = 10_000
_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<kilo>k?)(?:/s)?")


def parse_bytes(text: str, field: str = "size") -> int:
    """Return the number of bytes in `64`, `1KiB`, `4MiB` or `1.5MB`.

    Raises:
        ConfigError: not a number of bytes, or not a whole one.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get(match["unit"]) if match else None
    if match is None or factor is None:
        raise ConfigError(field, text, "a number of bytes, alone or with B, KiB, MiB, GiB, kB, MB, GB: 64, 1KiB, 4MiB")
    value = float(match["number"]) * factor
    if value != int(value):
        raise ConfigError(field, text, "a whole number of bytes")
    return int(value)


def parse_duration_s(text: str, field: str = "duration") -> float:
    """Return the seconds in `0.3`, `300ms`, `60s`, `2min`.

    Raises:
        ConfigError: not a duration, or zero.
    """
    match = _DURATION.fullmatch(text.strip())
    value = float(match["number"]) * _SECONDS[match["unit"]] if match else 0.0
    if value <= 0:
        raise ConfigError(field, text, "a time above zero with ns, us, ms, s, min or h: 300ms, 60s, 2min")
    return value


def parse_rate_per_s(text: str, field: str = "rate") -> float:
    """Return the messages per second in `500`, `500/s` or `2k/s`.

    Raises:
        ConfigError: not a rate, or zero.
    """
    match = _RATE.fullmatch(text.strip())
    value = float(match["number"]) * (1000.0 if match["kilo"] else 1.0) if match else 0.0
    if value <= 0:
        raise ConfigError(field, text, "messages per second, above zero, such as 500, 500/s or 2k/s")
    return value


def format_bytes(count: int) -> str:
    """Return a size exactly: in a binary unit if that takes few digits, else in bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        if count % _FACTORS[unit] == 0 and 1 <= count // _FACTORS[unit] < _MOST_UNITS:
            return f"{count // _FACTORS[unit]} {unit}"
    return f"{count:,} B"


def format_significant(value: float, digits: int = 3) -> str:
    """Return `value` with that many significant digits and separated thousands, without an exponent; `inf` and `nan`
    stay as they are.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 9.996 counts as 10.0
    decimals = digits - 1 - exponent
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def format_duration_ns(value_ns: float) -> str:
    """Return a time with three significant digits, in ns, µs, ms or s."""
    for limit, divisor, unit in ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if abs(value_ns) < limit * 0.9995:  # above this, three digits would round to 1,000 of the smaller unit
            return f"{format_significant(value_ns / divisor)} {unit}"
    return f"{format_significant(value_ns / 1e9)} s"


def format_ms(value_ns: float | None) -> str:
    """Return a time in milliseconds without the unit; a dash for an unknown one."""
    return "–" if value_ns is None else f"{value_ns / 1e6:,.3f}"


def format_percent(ratio: float) -> str:
    """Return a share with one decimal."""
    return f"{100 * ratio:.1f} %"
