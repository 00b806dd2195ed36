"""What a call moves, as text: `float32[64,128]+uint8[10]`, and `float32[64]>float32[8]` for a request and its reply."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

_TYPES = {
    "bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "int64", "uint64",
    "float64", "complex64", "complex128", "float8",
}  # fmt: skip
_WIDE = {"float32": 4, "float64": 8}
_NAMES = {"?": "bool", "c": "uint8", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "e": "float16",
          "i": "int32", "I": "uint32", "f": "float32", "q": "int64", "Q": "uint64", "d": "float64",
          "Zf": "complex64", "Zd": "complex128"}  # fmt: skip
_BUFFER = re.compile(r"([a-z]+\d*)\[((?:\d{1,15},){0,15}\d{0,15})\]")


def describe(buffers: Iterable[object]) -> str:
    """Return the text of buffers: objects of the buffer protocol (NumPy arrays, bytes), or texts as they are.

    Anything else is left out: tracing never raises into the application.
    """
    return "+".join(filter(None, map(_describe, buffers)))


def _describe(buffer: object) -> str:
    if isinstance(buffer, str):
        return buffer
    try:
        view = memoryview(buffer)  # type: ignore[arg-type] # what has no buffer is caught
    except (TypeError, ValueError, BufferError):
        return ""
    form = view.format.lstrip("@=<>!")
    name = _NAMES.get(form) or {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}.get(view.itemsize, "")
    if form in {"l", "L"}:
        name = f"{'u' if form == 'L' else ''}int{8 * view.itemsize}"
    return f"{name}[{','.join(map(str, view.shape or ()))}]" if name else f"uint8[{view.nbytes}]"


def wide_bytes(text: str) -> int:
    """Return how many bytes of a call are floating-point numbers of 4 or 8 bytes; 0 for text in another form."""
    total_bytes = 0
    for piece in filter(None, re.split("[+>]", text)):
        match = _BUFFER.fullmatch(piece)
        if match is None or match[1] not in _TYPES or text.count(">") > 1:
            return 0
        total_bytes += _WIDE.get(match[1], 0) * prod(int(size) for size in match[2].split(",") if size)
    return total_bytes
