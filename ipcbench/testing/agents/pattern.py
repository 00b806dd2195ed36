"""Messages that can be verified: each is a function of seed, sequence and size."""

from __future__ import annotations

import ctypes
import random
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from ipcbench.backend import Message

HEADER_BYTES = 16
"""Messages of at least this size begin with their sequence and seed."""

_HEADER = struct.Struct("<QQ")
_BLOCK_BYTES = 65_521
_STRIDE = 104_729
_MOST_LISTED = 8
_MOST_SURPLUS = 16


@lru_cache(maxsize=16)
def _doubled_block(seed: int) -> bytes:
    """Return a block of noise twice over. Its length is prime, so that a shift by a power of two shows."""
    return random.Random(seed).randbytes(_BLOCK_BYTES) * 2  # noqa: S311 - a test pattern, not a secret


def make_message(seed: int, sequence: int, size: int) -> bytes:
    """Return message `sequence` of stream `seed`, of `size` bytes; every byte depends on these and on its position."""
    header = _HEADER.pack(sequence, seed) if size >= HEADER_BYTES else b""
    start = (sequence * _STRIDE + size) % _BLOCK_BYTES
    needed = size - len(header)
    block = _doubled_block(seed)
    if needed <= _BLOCK_BYTES:
        return header + block[start : start + needed]
    whole = block[start : start + _BLOCK_BYTES]
    repeats, rest = divmod(needed, _BLOCK_BYTES)
    return b"".join((header, whole * repeats, whole[:rest]))


def _width(message: bytes) -> int:
    """Return how wide items can be: 8, 4, 2 or 1 bytes."""
    return next(width for width in (8, 4, 2, 1) if len(message) % width == 0)


def _array(data: Any, dtype: Any) -> Any:
    """Return data as a NumPy array. Few agents need one; to load NumPy takes most of an agent's start."""
    import numpy as np

    return np.frombuffer(data, dtype) if isinstance(data, bytes) else np.array(data, dtype)


_FORMS: dict[str, Callable[[bytes], Message]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "view": lambda message: memoryview(bytearray(b"<<<" + message + b">>>"))[3:-3],
    "read-only view": lambda message: memoryview(b"<<<" + message + b">>>")[3:-3],
    "array": lambda message: array({8: "d", 4: "f", 2: "H", 1: "B"}[_width(message)], message),
    "matrix": lambda message: _array(message, f"i{_width(message)}").reshape(1, -1),
    "complex numbers": lambda message: _array(message, "c16" if len(message) % 16 == 0 else "u1"),
    "structures": lambda message: _array(message, [("Open", f"i{_width(message)}")]),
}
KINDS = tuple(_FORMS)
"""Forms in which a message is passed to `write`; views are of the middle of a larger buffer, and the items of arrays as
wide as the size allows."""

UNFIT: dict[str, Callable[[], Message]] = {
    "text": lambda: "text",
    "nothing": lambda: None,
    "view with gaps": lambda: memoryview(b"0123456789")[::2],
    "objects": lambda: _array([{}, {}], object),
    "pointers": ctypes.c_void_p * 2,
}
"""What `write` must refuse: no buffer, gaps between its items, references into memory of the process."""


def make_as(kind: str, seed: int, sequence: int, size: int) -> Message:
    """Return the message as one of `KINDS`, or one of `UNFIT`."""
    return UNFIT[kind]() if kind in UNFIT else _FORMS[kind](make_message(seed, sequence, size))


def read_header(view: memoryview) -> tuple[int, int] | None:
    """Return the (sequence, seed) that a message begins with; None if it is too short to have them."""
    return _HEADER.unpack_from(view) if len(view) >= HEADER_BYTES else None


def is_message(view: memoryview, seed: int, sequence: int, size: int) -> bool:
    """Return whether `view` is that message, to the last byte."""
    return len(view) == size and bytes(view) == make_message(seed, sequence, size)


def is_plain_view(view: object) -> bool:
    """Return whether it is what `read` promises: a one-dimensional, contiguous memoryview of single bytes."""
    return isinstance(view, memoryview) and view.ndim == 1 and view.itemsize == 1 and view.c_contiguous


@dataclass(slots=True)
class StreamCounts:
    """What one reader received of a stream of `count` messages that starts at sequence `first`."""

    first: int
    count: int
    received_count: int = 0
    damaged_count: int = 0
    """Messages of the stream that do not equal what was written."""
    foreign_count: int = 0
    """Messages of another stream, of an unknown sequence, or too short to tell."""
    repeated: list[int] = field(default_factory=list)
    """The first few sequences that came more than once."""
    disordered: list[int] = field(default_factory=list)
    """The first few sequences that came for the first time, but after a later one."""
    last_sequence: int = -1
    """The highest sequence so far; −1 before the first message."""
    ended: str = ""
    """Name of the error that ended the reading; empty if it ended with the last message."""
    seen: set[int] = field(default_factory=set)

    def add(self, view: memoryview, seed: int, sizes: list[int]) -> None:
        """Count one message that has arrived."""
        self.received_count += 1
        header = read_header(view)
        known = header is not None and header[1] == seed and self.first <= header[0] < self.first + self.count
        if header is None or not known:
            self.foreign_count += 1
            return
        sequence = header[0]
        self.damaged_count += not is_message(view, seed, sequence, sizes[sequence % len(sizes)])
        if sequence in self.seen:
            self._note(self.repeated, sequence)
        elif sequence < self.last_sequence:
            self._note(self.disordered, sequence)
        self.seen.add(sequence)
        self.last_sequence = max(self.last_sequence, sequence)

    def is_flood(self) -> bool:
        """Return whether so many foreign or repeated messages have come that more would tell nothing."""
        return self.received_count - len(self.seen) > _MOST_SURPLUS

    def at_end(self) -> bool:
        """Return whether the last message of the stream has come."""
        return self.last_sequence == self.first + self.count - 1

    def gaps(self) -> Iterator[list[int]]:
        """Yield [first, last] of each run of sequences that never came."""
        start = self.first
        for sequence in [*sorted(self.seen), self.first + self.count]:
            if sequence > start:
                yield [start, sequence - 1]
            start = sequence + 1

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, with the first few `gaps` instead of all that was seen."""
        values = asdict(self)
        del values["seen"]
        gaps = list(self.gaps())
        return {**values, "gaps": gaps[:_MOST_LISTED], "missing_count": sum(b - a + 1 for a, b in gaps)}

    @staticmethod
    def _note(sequences: list[int], sequence: int) -> None:
        if len(sequences) < _MOST_LISTED:
            sequences.append(sequence)
