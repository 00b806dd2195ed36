"""Sizes, times, rates and shares as text, parsed and formatted.

KiB is 1024 bytes, MiB 1024²; kB is 1000 bytes, MB 1000². A letter alone, as other tools have it (`64k`, `1M`), counts
by 1024.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

from ipcbench.errors import ConfigError

_FACTORS = {
    "": 1,
    "b": 1,
    **{unit: 2 ** (10 * power) for power, letter in enumerate("kmg", 1) for unit in (letter, f"{letter}ib")},
    **{f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmg", 1)},
}
_COUNT_FACTORS = {"": 1, "k": 10**3, "m": 10**6}
_NUMBER = r"(?P<number>\d+(?:\.\d+)?(?:e\d{1,2})?)\s*"
_SIZE = re.compile(rf"{_NUMBER}(?P<unit>[a-z]*)", re.IGNORECASE)
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ns|us|µs|ms|s|sec|m|mins?|h)?")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "h": 3600.0, None: 1.0}
_SECONDS |= dict.fromkeys(("m", "min", "mins"), 60.0)
_MOST_UNITS = 10_000
_RATIO = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<sign>%?)")
_BIT_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<prefix>[kKMGT]?)bit(?:/s|ps)?")
_BIT_FACTORS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:e\d{1,2})?)(?P<unit>[kM]?)(?:/s)?")


def parse_bytes(text: str, field: str = "size") -> int:
    """Return the number of bytes in `64`, `1KiB`, `64k`, `1.5MB` or `1e6`.

    Raises:
        ConfigError: not a number of bytes, or not a whole one.
    """
    return _whole(text, field, _FACTORS, "bytes", "64, 1KiB, 4MiB, 64k (= 64KiB), 10kB (= 10,000), 1e6")


def parse_count(text: str, field: str = "count") -> int:
    """Return the number in `500`, `10k` or `1e6`.

    Raises:
        ConfigError: not a number, or not a whole one.
    """
    return _whole(text, field, _COUNT_FACTORS, "entries", "500, 10k (= 10,000), 1e6")


def _whole(text: str, field: str, factors: Mapping[str, int], noun: str, examples: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    factor = factors.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise ConfigError(field, text, f"a number of {noun} such as {examples}")
    value = Fraction(match["number"]) * factor
    if value.denominator != 1:
        raise ConfigError(field, text, f"a whole number of {noun}")
    return int(value)


def parse_ratio(text: str, field: str = "share") -> float:
    """Return 0.05 for `5%`, `5` and `0.05`: a number of 1 or more is in percent even without the sign.

    Raises:
        ConfigError: not a number, or a negative one.
    """
    match = _RATIO.fullmatch(text.strip())
    if match is None:
        raise ConfigError(field, text, "a percentage such as 5% or 5, or a share such as 0.05")
    value = float(match["number"])
    return value / 100.0 if match["sign"] or value >= 1.0 else value


def parse_duration_s(text: str, field: str = "duration", *, or_zero: bool = False) -> float:
    """Return the seconds in `0.3`, `300ms`, `60s`, `2min`; `or_zero` allows `0`.

    Raises:
        ConfigError: not a duration, or zero.
    """
    match = _DURATION.fullmatch(text.strip())
    value = float(match["number"]) * _SECONDS[match["unit"]] if match else -1.0
    if value < 0 or not (value or or_zero):
        above = "" if or_zero else " above zero"
        raise ConfigError(
            field, text, f"a time{above} in ns, us, ms, s, min or h, or in seconds without a unit: 300ms, 60s, 2min"
        )
    return value


def parse_rate_per_s(text: str, field: str = "rate") -> float:
    """Return the messages per second in `500`, `500/s`, `2k/s` or `1M/s`.

    Raises:
        ConfigError: not a rate, or zero.
    """
    match = _RATE.fullmatch(text.strip())
    value = float(match["number"]) * _COUNT_FACTORS[match["unit"].lower()] if match else 0.0
    if value <= 0:
        raise ConfigError(field, text, "messages per second, above zero, such as 500, 500/s or 2k/s")
    return value


def parse_bits_per_s(text: str, field: str = "rate") -> float:
    """Return the bits per second in `1Gbit/s`, `100Mbit` or `56kbit/s`; prefixes count by 1000.

    Raises:
        ConfigError: not a rate of bits, or zero.
    """
    match = _BIT_RATE.fullmatch(text.strip())
    value = float(match["number"]) * _BIT_FACTORS[match["prefix"]] if match else 0.0
    if value <= 0:
        raise ConfigError(field, text, "bits per second, above zero, such as 1Gbit/s or 100Mbit/s")
    return value


def format_bits_per_s(value: float) -> str:
    """Return a rate of bits in the unit that needs few digits."""
    prefix, factor = next(((p, f) for p, f in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if value >= f), ("", 1.0))
    return f"{value / factor:g} {prefix}bit/s"


def format_bytes(count: int) -> str:
    """Return a size exactly: in a binary unit if that takes few digits, else in bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = _FACTORS[unit.lower()]
        if count % factor == 0 and 1 <= count // factor < _MOST_UNITS:
            return f"{count // factor} {unit}"
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


def format_duration_ns(value_ns: float, digits: int = 3) -> str:
    """Return a time with that many significant digits, in ns, µs, ms or s."""
    for limit, divisor, unit in ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if abs(value_ns) < limit * (1 - 0.5 / 10**digits):  # above this, it would round to 1,000 of the smaller unit
            return f"{format_significant(value_ns / divisor, digits)} {unit}"
    return f"{format_significant(value_ns / 1e9, digits)} s"


def format_ms(value_ns: float | None) -> str:
    """Return a time in milliseconds without the unit; a dash for an unknown one."""
    return "–" if value_ns is None else f"{value_ns / 1e6:,.3f}"


def format_percent(ratio: float) -> str:
    """Return a share with one decimal."""
    return f"{100 * ratio:.1f} %"
