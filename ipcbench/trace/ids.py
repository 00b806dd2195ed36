"""Trace ids in the forms that callers have: numbers, bytes, hexadecimal digits, W3C `traceparent`."""

from __future__ import annotations

import re
from typing import TypeAlias
from uuid import UUID
from zlib import crc32

TraceId: TypeAlias = "int | str | bytes | UUID | None"

_HEX = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{1,32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?", re.IGNORECASE)
_LOW = 2**64 - 1


def parse_trace_id(trace_id: TraceId) -> tuple[int, int]:
    """Return the two 64-bit halves of a trace id, high and low.

    Text in any other form is hashed: no application fails because of its ids.
    """
    if isinstance(trace_id, UUID):
        number = trace_id.int
    elif isinstance(trace_id, int):
        number = trace_id
    elif isinstance(trace_id, bytes | bytearray):
        number = int.from_bytes(trace_id[:16], "big")
    else:
        text = str(trace_id)
        match = _HEX.fullmatch(text) or _HEX.fullmatch(text.replace("-", ""))
        number = int(match[1], 16) if match else crc32(text.encode()) << 32 | crc32(text.encode()[::-1])
    return number >> 64 & _LOW, number & _LOW


def format_trace_id(high: int, low: int) -> str:
    """Return 32 hexadecimal digits."""
    return f"{high:016x}{low:016x}"
