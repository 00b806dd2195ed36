"""The files of a trace, byte by byte: segments of call records (.ipct), and histograms of the other calls (.ipch).

Everything is little-endian. A record's marker is written last and depends on the record's offset: a slot without its
marker was never finished and is not a record.
"""

from __future__ import annotations

import json
from pathlib import Path
from struct import Struct
from typing import Any

from ipcbench.trace.schema import MAX_STAGES
from ipcbench.util.bins import BINS_PER_OCTAVE, LINEAR_BINS
from ipcbench.util.bins import bin_of as unbounded_bin_of

SEGMENT_SUFFIX = ".ipct"
SEGMENT_MAGIC = b"IPCT\r\n\x1a\n"
HISTOGRAMS_SUFFIX = ".ipch"
HISTOGRAMS_MAGIC = b"IPCH\r\n\x1a\n"
PROCESSES_FILE = "processes.jsonl"
"""Of a program that was recorded unmodified: a line for each Python process that began, and for each program that one
started."""
FORMAT_VERSION = 1

HEADER_BYTES = 4096
RECORD_BYTES = 128

CALL = 1
"""Kind of a record that holds a call."""

NAME = 2
"""Kind of a record that holds a piece of a name."""

SAMPLED = 3
"""Kind of a record that says for how many calls, which were only counted, the records of a call site since the last
such record stand. The number is where a call has what it sent; where a call has what it received is how the interval
ends: 0, `ENDS` or `ENDS_LATE`."""

ENDS, ENDS_LATE = 1, 2
"""No record to come stands for a call before this; and the next one of this call site is late: it is chosen for the
time that has passed, from the next `LATE_CHOICE` calls, and stands for no others."""

LATE_CHOICE = 8

FAILED = 1
"""Flag: the call ended with an exception."""

KEPT = 2
"""Flag: recorded although sampling left it out, because it failed or was the slowest of its method so far."""

OVERRUN = 4
"""Flag: more marks than stages; the last stage includes the surplus."""

EMPTY = 8
"""Flag: the sizes are known to be 0. A record that says 0 without it may be of a call whose bytes nobody noted."""

MARKER = 0x5A7C159E3779B00
"""XORed with a slot's offset to give its marker."""

OWN_TRACE = (0, 0)
"""The trace id of a call that was given none: readers derive it from the record's place."""

_PREFIX = Struct("<8sHHI")
_LOSS_AT = 10
_LOSS = b"\1\0"
"""The third field of the prefix, in a segment whose thread could not put all its calls anywhere."""

_WAIT_AT = HEADER_BYTES - 32
_WAIT = Struct("<2Q")
"""For how long the thread had waited for a core when the file was made, and when it was closed, in ns, plus 1. 0 if not
known."""
_ALLOCATED_AT, _USED_AT = HEADER_BYTES - 16, HEADER_BYTES - 8
_LENGTH = Struct("<Q")
"""Two lengths of the file, at the end of its first page: as it was made, and as it was closed. 0 if not known."""

PACK_HEAD = Struct("<BBBBHHHHI").pack
"""kind, flags, ends, role, ids of method, schema, peer, error and buffers; 0 for none."""

PACKERS = tuple(Struct(f"<16sQQQ{ends + 1}q{8 * (MAX_STAGES - ends)}xQQQ").pack_into for ends in range(MAX_STAGES + 1))
"""By the number of stage ends: head, trace id (high, low), span id, begin and ends in ns, bytes sent and received,
marker. A trace id of 0 follows from the file's first ids and the slot's number. A span id of 0 means that nobody asked
for the call's context, so nothing can be joined to it."""

ENDPOINT_MARK = "\x01endpoint "
"""How a name begins that no record uses: it describes an endpoint, with its options."""

NAME_BYTES = 112
PACK_NAME = Struct(f"<BBHHH{NAME_BYTES}sQ").pack_into
"""kind, 0, id, number of the piece, bytes of the whole name, piece, marker."""

LAST_OCTAVE = 33
BIN_COUNT = LINEAR_BINS + LAST_OCTAVE * BINS_PER_OCTAVE
"""Bins of ipcbench/util/bins.py, up to 2⁴¹ ns (36 minutes); the last bin also takes everything longer."""

CELL_BYTES = 8
SUM_CELLS = 32
SUMS_COUNT = 14
PACK_SUMS = Struct("<14Q").pack_into
"""Stored twice, after the first cell and at half of SUM_CELLS, and written alternately: calls, failures, bytes sent,
bytes received, total ns, longest ns, ns of 7 stages, calls again. If the two numbers of calls differ, the process died
while it wrote this copy; the other copy is whole."""

SUMS_EVERY = 64
"""Calls between two writes of the sums to the file. The bins, which hold the exact count, are written at once."""

HISTOGRAMS_BYTES = HEADER_BYTES + (SUM_CELLS + BIN_COUNT) * CELL_BYTES


def pack_header(magic: bytes, block_bytes: int, facts: dict[str, Any]) -> bytes:
    """Return the first page of a file: magic, version, size of the blocks that follow, and `facts` as JSON."""
    text = json.dumps(facts, ensure_ascii=True).encode()
    if len(text) > _WAIT_AT - _PREFIX.size:
        raise ValueError(f"a header of {len(text):,} bytes is too long")
    prefix = _PREFIX.pack(magic, FORMAT_VERSION, 0, block_bytes)
    return (prefix + text).ljust(HEADER_BYTES, b"\0")


def unpack_header(data: bytes, magic: bytes) -> tuple[int, dict[str, Any]]:
    """Return the size of the blocks that follow the first page, and its facts.

    Raises:
        ValueError: not such a page, or of another version.
    """
    if len(data) < HEADER_BYTES:
        raise ValueError("it is shorter than a header")
    actual, version, _, block_bytes = _PREFIX.unpack_from(data)
    if actual != magic:
        raise ValueError("it does not begin as such a file does")
    if version != FORMAT_VERSION:
        raise ValueError(f"its format is version {version}; this is version {FORMAT_VERSION}")
    facts = json.loads(data[_PREFIX.size : _WAIT_AT].rstrip(b"\0"))
    if not isinstance(facts, dict):
        raise ValueError("its header is not a JSON object")  # noqa: TRY004 # the file is wrong, not an argument
    return block_bytes, facts


def note_length(header: Any, length_bytes: int, *, is_used: bool = False) -> None:
    """Write into the first page how long the file is now that it was made, or now that it is closed."""
    _LENGTH.pack_into(header, _USED_AT if is_used else _ALLOCATED_AT, length_bytes)


def due_bytes(header: bytes) -> int:
    """Return how long the file must at least be, as its first page says."""
    used_bytes: int = _LENGTH.unpack_from(header, _USED_AT)[0]
    return used_bytes or int(_LENGTH.unpack_from(header, _ALLOCATED_AT)[0])


def note_wait(header: Any, made_ns: int | None, closed_ns: int | None) -> None:
    """Write into the first page for how long the thread had waited for a core when the file was made and closed."""
    _WAIT.pack_into(header, _WAIT_AT, *(0 if each is None else each + 1 for each in (made_ns, closed_ns)))


def waited_ns(header: bytes) -> int | None:
    """Return for how long the thread of a file waited for a core while it recorded; None if that is unknown."""
    made, closed = _WAIT.unpack_from(header, _WAIT_AT)
    return closed - made if 0 < made <= closed else None


def note_loss(path: Path) -> None:
    """Write into a segment that its thread has lost calls.

    Raises:
        OSError: it cannot be changed.
    """
    with path.open("r+b") as file:
        file.seek(_LOSS_AT)
        file.write(_LOSS)


def has_loss(header: bytes) -> bool:
    """Return whether the thread of a segment has lost calls."""
    return header[_LOSS_AT : _LOSS_AT + len(_LOSS)] == _LOSS


def bin_of(value_ns: int) -> int:
    """Return the bin of a duration ≥ 0."""
    return min(unbounded_bin_of(value_ns), BIN_COUNT - 1)
