"""Perfetto's protobuf trace: calls as slices on tracks, their stages inside them, flows from client to server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import IO

from ipcbench.trace.exporters.chrome import arguments, process_name, track_name
from ipcbench.trace.exporters.common import Scan, Tracks, at_ns, left_out, require, scan, stages_of
from ipcbench.trace.readers.calls import FAR_SIDES, Process, Row
from ipcbench.trace.readers.everything import Source
from ipcbench.trace.schema import CLIENT

# Numbers of fields, of protos/perfetto/trace/trace.proto and what it imports.
_TRACE_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _FLAGS, _DESCRIPTOR = 8, 10, 11, 13, 60
_EVENT_TYPE, _EVENT_TRACK, _EVENT_NAME, _EVENT_CATEGORY, _EVENT_FLOW, _EVENT_FLOW_END, _EVENT_ARGUMENT = (
    9, 11, 23, 22, 47, 48, 4,
)  # fmt: skip
_ARGUMENT_NAME, _ARGUMENT_UNSIGNED, _ARGUMENT_TEXT = 10, 3, 6
_TRACK_UUID, _TRACK_NAME, _TRACK_PROCESS, _TRACK_PARENT = 1, 2, 3, 5
_PROCESS_PID, _PROCESS_NAME = 1, 6
_BEGIN, _END = 1, 2
_SEQUENCE_NUMBER, _STATE_CLEARED = 1, 1
_FIRST_PROCESS = 2**32
"""Ids of processes' tracks begin here, those of threads' tracks at 1."""


def write(source: Source, out: IO[bytes]) -> tuple[str, ...]:
    """Write all calls that have a time, in ns since 1970, or since the host started if that is all that is known.

    Raises:
        StoreError: none has.
    """
    scanned = scan(source)
    tracks = Tracks()
    processes: dict[tuple[str, str, int], int] = {}
    known: set[int] = set()
    out.write(_packet(_number(_FLAGS, _STATE_CLEARED)))
    for row, track in tracks.place(source.in_order()):
        who = row.process.identity
        if who not in processes:
            processes[who] = _FIRST_PROCESS + len(processes)
            out.write(_process_track(row.process, processes[who]))
        if track.number not in known:
            known.add(track.number)
            name = _text(_TRACK_NAME, track_name(row.process, track.index))
            descriptor = _number(_TRACK_UUID, track.number) + name + _number(_TRACK_PARENT, processes[who])
            out.write(_packet(_message(_DESCRIPTOR, descriptor)))
        out.writelines(_call(row, track.number, scanned))
    require(len(known), source)
    return left_out(source)


def _process_track(process: Process, uuid: int) -> bytes:
    # Viewers merge two processes with the same pid; a process without a known pid gets one that none can have.
    pid = process.pid or uuid - _FIRST_PROCESS + 2**30
    descriptor = _number(_PROCESS_PID, pid) + _text(_PROCESS_NAME, process_name(process))
    return _packet(_message(_DESCRIPTOR, _number(_TRACK_UUID, uuid) + _message(_TRACK_PROCESS, descriptor)))


def _call(row: Row, track: int, scanned: Scan) -> Iterator[bytes]:
    """Yield the packets of a call: its begin, begin and end of each stage, its end."""
    offset = at_ns(row) - row.begin_ns
    more = b"".join(_argument(name, value) for name, value in arguments(row).items())
    if (row.trace_id, row.span) in scanned.linked and row.role in {CLIENT, *FAR_SIDES}:
        more += _fixed(_EVENT_FLOW if row.role == CLIENT else _EVENT_FLOW_END, row.span)
    end = _end(track)
    yield _event(row.begin_ns + offset, _begin(track, row.method, "call") + more)
    for name, begin_ns, end_ns in stages_of(row) if len(row.stages) > 1 else ():
        yield _event(begin_ns + offset, _begin(track, name, "stage"))
        yield _event(end_ns + offset, end)
    yield _event(row.end_ns + offset, end)


@lru_cache(maxsize=4096)
def _begin(track: int, name: str, category: str) -> bytes:
    """Return what all slices of a name on a track begin with."""
    kind = _number(_EVENT_TYPE, _BEGIN) + _number(_EVENT_TRACK, track)
    return kind + _text(_EVENT_NAME, name) + _text(_EVENT_CATEGORY, category)


@lru_cache(maxsize=4096)
def _end(track: int) -> bytes:
    return _number(_EVENT_TYPE, _END) + _number(_EVENT_TRACK, track)


def _event(when_ns: int, event: bytes) -> bytes:
    return _packet(_TIMESTAMP_TAG + _varint(when_ns) + _message(_EVENT, event))


def _argument(name: str, value: str | int) -> bytes:
    """Return a debug annotation."""
    content = _number(_ARGUMENT_UNSIGNED, value) if isinstance(value, int) else _text(_ARGUMENT_TEXT, value)
    return _message(_EVENT_ARGUMENT, _text(_ARGUMENT_NAME, name) + content)


def _packet(body: bytes) -> bytes:
    return _message(_TRACE_PACKET, body + _SEQUENCE_END)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


_SMALL = tuple(bytes([value]) for value in range(0x80))


@lru_cache(maxsize=256)
def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _number(field: int, value: int) -> bytes:
    """Return an unsigned number."""
    return _tag(field, 0) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _tag(field, 1) + value.to_bytes(8, "little")


def _message(field: int, data: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(data)) + data


@lru_cache(maxsize=4096)
def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode(errors="replace"))


_TIMESTAMP_TAG = _tag(_TIMESTAMP, 0)
_SEQUENCE_END = _number(_SEQUENCE, _SEQUENCE_NUMBER)
