"""Trace ids as callers have them: numbers, bytes, hexadecimal digits, W3C `traceparent`. Standard library only."""

from __future__ import annotations

import re
from typing import TypeAlias
from uuid import UUID
from zlib import crc32

TraceId: TypeAlias = "int | str | bytes | UUID | None"

_HEX = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{1,32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?", re.IGNORECASE)
_LOW = 2**64 - 1


def parse_trace_id(one: TraceId) -> tuple[int, int]:
    """Return the two 64-bit halves of a trace id, high and low.

    Text of another form is an id too, by its hash: no application fails because of its ids.
    """
    if isinstance(one, UUID):
        number = one.int
    elif isinstance(one, int):
        number = one
    elif isinstance(one, bytes | bytearray):
        number = int.from_bytes(one[:16], "big")
    else:
        text = str(one)
        match = _HEX.fullmatch(text) or _HEX.fullmatch(text.replace("-", ""))
        number = int(match[1], 16) if match else crc32(text.encode()) << 32 | crc32(text.encode()[::-1])
    return number >> 64 & _LOW, number & _LOW


def format_trace_id(high: int, low: int) -> str:
    """Return 32 hexadecimal digits."""
    return f"{high:016x}{low:016x}"
