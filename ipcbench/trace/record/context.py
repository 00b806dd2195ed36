"""The context of a call: 40 bytes that travel with its request, by which the other side's record is joined to it.

    offset  0  magic      two bytes
            2  version
            3  flags      1: the caller records this call; 2: it does not trace, so the server decides
            4  boot       identifies the clock of `sent_ns`: CRC-32 of the boot id
            8  trace id   high and low half
           24  span id    0: there is no record to join
           32  sent_ns    when the request was sent

All little-endian. As text, for systems other than ipcbench, it is a W3C `traceparent`, which has neither clock nor time
stamp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

MAGIC: Final = b"\xc7\x9d"
VERSION: Final = 1
SAMPLED: Final = 1
UNDECIDED: Final = 2
CONTEXT_BYTES: Final = 40

KEY: Final = "ipcbench"
"""The key of the context, as bytes, in a request that is a map."""

TRACEPARENT: Final = "traceparent"
"""The key of the context as text."""

_STRUCT = Struct("<2sBBIQQQq")
pack_context = _STRUCT.pack
"""magic, version, flags, boot, trace id (high, low), span id, sent_ns → 40 bytes."""
_unpack_context = _STRUCT.unpack_from

NO_DECISION: Final = pack_context(MAGIC, VERSION, UNDECIDED, 0, 0, 0, 0, 0)
"""The context of a process that does not trace."""

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Context(NamedTuple):
    """What a request says about the call that it belongs to.

    Attributes:
        high, low: halves of the trace id.
        span: id of the call; 0 for a caller that does not record.
        sampled: whether the caller records this call; None if it does not trace.
        boot: the clock of `sent_ns`; 0 if there is no stamp.
        sent_ns: when the request was sent.
    """

    high: int
    low: int
    span: int
    sampled: bool | None
    boot: int = 0
    sent_ns: int = 0

    @property
    def traceparent(self) -> str:
        """The W3C header of this context."""
        return f"00-{self.high:016x}{self.low:016x}-{self.span:016x}-{int(bool(self.sampled)):02x}"

    def packed(self) -> bytes:
        """Return the 40 bytes."""
        flags = UNDECIDED if self.sampled is None else int(self.sampled)
        return pack_context(MAGIC, VERSION, flags, self.boot, self.high, self.low, self.span, self.sent_ns)


def unpack_context(data: bytes | bytearray | memoryview, offset: int = 0) -> Context | None:
    """Return the context in 40 bytes from `offset`; None if there is none, or one of another version."""
    if len(data) - offset < CONTEXT_BYTES:
        return None
    magic, version, flags, boot, high, low, span, sent_ns = _unpack_context(data, offset)
    if magic != MAGIC or version != VERSION or flags > UNDECIDED:
        return None
    return Context(high, low, span, None if flags == UNDECIDED else flags == SAMPLED, boot, sent_ns)


def parse_traceparent(text: str) -> Context | None:
    """Return the context of a W3C `traceparent`; None if it is not a valid one."""
    match = _PARENT.fullmatch(text.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace, span = int(match[2], 16), int(match[3], 16)
    if not trace or not span:
        return None
    return Context(trace >> 64, trace & (2**64 - 1), span, bool(int(match[4], 16) & SAMPLED))


def extract(carrier: object) -> Context | None:
    """Return the context of something received; None if it carries none.

    Args:
        carrier: a map (with the key `ipcbench`, or `traceparent` as in HTTP), 40 bytes, a `traceparent`, or a context.
    """
    if isinstance(carrier, Context):
        return carrier
    if isinstance(carrier, Mapping):
        packed = carrier.get(KEY)
        if isinstance(packed, bytes | bytearray | memoryview) and len(packed) == CONTEXT_BYTES:
            return unpack_context(packed)
        carrier = carrier.get(TRACEPARENT)
        if isinstance(carrier, bytes):
            carrier = carrier.decode("ascii", "replace")
    elif isinstance(carrier, bytes | bytearray | memoryview):
        return unpack_context(carrier) if len(carrier) == CONTEXT_BYTES else None
    return parse_traceparent(carrier) if isinstance(carrier, str) else None
