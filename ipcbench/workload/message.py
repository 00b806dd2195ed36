"""The message that the harness sends: a 64-byte header, the payload, an 8-byte trailer. Packed in place, verified
whole.

    offset  0  sequence       from 1, one up per message of a channel
            8  intended_ns    when the schedule wanted it sent
           16  sent_ns        when it was handed to the transport
           24  flags          the phase it belongs to
           32  payload_bytes
           40  check          CRC-32 of the payload
           48  reserved, zero
           64  payload
    64 + payload_bytes        sequence again: a message put together from two is seen without hashing it

All words are signed 64-bit integers in the machine's own byte order.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum

HEADER_BYTES = 64
TRAILER_BYTES = 8
OVERHEAD_BYTES = HEADER_BYTES + TRAILER_BYTES

SEQUENCE, INTENDED, SENT, FLAGS, PAYLOAD_BYTES, CHECK = range(6)
"""Indices of the header's words."""

unpack_stamp = struct.Struct("=4q").unpack_from
"""Return (sequence, intended_ns, sent_ns, flags) of a message."""

unpack_word = struct.Struct("=q").unpack_from
"""Return (word,) at an offset in bytes; the trailer, for one."""


class Phase(IntEnum):
    """What a message is for; the writer decides, the readers follow."""

    WARMUP = 1
    MEASURE = 2
    DECODE = 3
    END = 4


class Outgoing:
    """A message in a buffer of its own, ready to be stamped and sent again and again.

    Attributes:
        buffer: the whole message.
        head: its header as words; write `head[SEQUENCE]` and so on before each send.
        tail: its trailer as one word; write `tail[0]` = sequence before each send.
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
    """Return whether length, header and trailer belong together; does not look at the payload."""
    if len(view) != expected_bytes or expected_bytes < OVERHEAD_BYTES:
        return False
    return bool(
        unpack_word(view, expected_bytes - TRAILER_BYTES) == unpack_word(view, 0)
        and unpack_word(view, 8 * PAYLOAD_BYTES)[0] == expected_bytes - OVERHEAD_BYTES
    )


def body_matches(view: memoryview) -> bool:
    """Return whether the payload hashes to the header's check; reads the whole payload."""
    return bool(zlib.crc32(payload_of(view)) == unpack_word(view, 8 * CHECK)[0])
