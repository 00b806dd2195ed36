"""The message that the harness sends: a 64-byte header, the payload, an 8-byte trailer; stamped in place.

    offset  0  sequence       from 1, increases by 1 per message of a channel
            8  intended_ns    when the schedule wants it sent
           16  sent_ns        when it was handed to the transport
           24  flags          the phase it belongs to
           32  payload_bytes
           40  check          CRC-32 of the payload
           48  stamp_every    in a saturated window: one message in so many has times of its own, the others have those
                              of the last such message; otherwise 0
           56  reserved, zero
           64  payload
    64 + payload_bytes        sequence again, which reveals a message mixed from two without hashing it

All words are signed 64-bit integers in native byte order.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum

HEADER_BYTES = 64
TRAILER_BYTES = 8
OVERHEAD_BYTES = HEADER_BYTES + TRAILER_BYTES

SEQUENCE, INTENDED, SENT, FLAGS, PAYLOAD_BYTES, CHECK, STAMP_EVERY = range(7)
"""Indices of the header's words."""

unpack_stamp = struct.Struct("=4q").unpack_from
"""Return (sequence, intended_ns, sent_ns, flags) of a message."""

unpack_word = struct.Struct("=q").unpack_from
"""Return (word,) at an offset in bytes."""


class Phase(IntEnum):
    """Phase of a trial that a message belongs to; the writer decides, the readers follow."""

    WARMUP = 1
    MEASURE = 2
    PAUSE = 3
    """The last message before a pause, in a closed loop that takes turns."""
    DECODE = 4
    END = 5


class Outgoing:
    """A message in its own buffer, to be stamped and sent repeatedly.

    Attributes:
        buffer: the whole message.
        head: the header as words; set `head[SEQUENCE]` and so on before each send.
        tail: the trailer as one word; set `tail[0]` to the sequence before each send.
    """

    __slots__ = ("buffer", "head", "tail")

    def __init__(self, payload: bytes | memoryview) -> None:
        self.buffer = bytearray(OVERHEAD_BYTES + len(payload))
        view = memoryview(self.buffer)
        self.head = view[:HEADER_BYTES].cast("q")
        self.tail = view[-TRAILER_BYTES:].cast("q")
        view[HEADER_BYTES:-TRAILER_BYTES] = payload
        self.head[PAYLOAD_BYTES] = len(payload)
        self.head[CHECK] = zlib.crc32(payload)


def message_bytes(payload_bytes: int) -> int:
    """Return the size of the message that carries a payload of that size."""
    return OVERHEAD_BYTES + payload_bytes


def payload_of(view: memoryview) -> memoryview:
    """Return the payload inside a message."""
    return view[HEADER_BYTES:-TRAILER_BYTES]


def is_whole(view: memoryview, expected_bytes: int) -> bool:
    """Return whether length, header and trailer match; the payload is not read."""
    if len(view) != expected_bytes or expected_bytes < OVERHEAD_BYTES:
        return False
    return bool(
        unpack_word(view, expected_bytes - TRAILER_BYTES) == unpack_word(view, 0)
        and unpack_word(view, 8 * PAYLOAD_BYTES)[0] == expected_bytes - OVERHEAD_BYTES
    )


def body_matches(view: memoryview) -> bool:
    """Return whether the payload matches the header's CRC-32; reads the whole payload."""
    return bool(zlib.crc32(payload_of(view)) == unpack_word(view, 8 * CHECK)[0])
