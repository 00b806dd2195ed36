"""What a call moves, as text: `float32[64,128]+uint8[10]`, and `float32[64]>float32[8]` for a request and its reply."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Final

ITEM_BYTES: Final = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4,
    "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16, "float8": 1,
}  # fmt: skip
"""Types by name, and the bytes of one item."""

_NAMES = {"?": "bool", "c": "uint8", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "e": "float16",
          "i": "int32", "I": "uint32", "f": "float32", "q": "int64", "Q": "uint64", "d": "float64",
          "Zf": "complex64", "Zd": "complex128"}  # fmt: skip
_BUFFER = re.compile(r"([a-z]+\d*)\[((?:\d{1,15},){0,15}\d{0,15})\]")


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of a message.

    Attributes:
        dtype: a name of `ITEM_BYTES`.
        shape: items in each dimension; () for one item.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


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


def parse_buffers(text: str) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]] | None:
    """Return the buffers of a request and of its reply; None for text in another form."""
    halves = [_parse_half(half) for half in text.split(">")]
    if len(halves) > 2 or None in halves:
        return None
    request, reply = (*halves, ())[:2]
    return request or (), reply or ()


def _parse_half(text: str) -> tuple[Buffer, ...] | None:
    buffers = []
    for piece in filter(None, text.split("+")):
        match = _BUFFER.fullmatch(piece)
        if match is None or match[1] not in ITEM_BYTES:
            return None
        buffers.append(Buffer(match[1], tuple(int(size) for size in match[2].split(",") if size)))
    return tuple(buffers)


def wide_bytes(text: str) -> int:
    """Return how many bytes of a call are floating-point numbers of 4 or 8 bytes."""
    halves = parse_buffers(text) or ()
    return sum(buffer.size_bytes for half in halves for buffer in half if buffer.dtype in {"float32", "float64"})
