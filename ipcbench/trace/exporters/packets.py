"""The packets of Perfetto's protobuf trace: tracks of processes and threads, slices on them, flows between slices."""

from __future__ import annotations

from functools import lru_cache

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


def clear() -> bytes:
    """Return the first packet of a trace."""
    return _packet(_number(_FLAGS, _STATE_CLEARED))


def process_track(uuid: int, pid: int, name: str) -> bytes:
    """Return the packet that describes the track of a process; viewers merge those with the same pid."""
    descriptor = _number(_PROCESS_PID, pid) + _text(_PROCESS_NAME, name)
    return _packet(_message(_DESCRIPTOR, _number(_TRACK_UUID, uuid) + _message(_TRACK_PROCESS, descriptor)))


def track(uuid: int, name: str, parent: int) -> bytes:
    """Return the packet that describes a track within that of a process."""
    descriptor = _number(_TRACK_UUID, uuid) + _text(_TRACK_NAME, name) + _number(_TRACK_PARENT, parent)
    return _packet(_message(_DESCRIPTOR, descriptor))


def flow(number: int, *, is_last: bool) -> bytes:
    """Return what makes a slice a station, or the end, of the flow with that number."""
    return _fixed(_EVENT_FLOW_END if is_last else _EVENT_FLOW, number)


@lru_cache(maxsize=4096)
def begin(track: int, name: str, category: str) -> bytes:
    """Return what all slices of a name on a track begin with."""
    kind = _number(_EVENT_TYPE, _BEGIN) + _number(_EVENT_TRACK, track)
    return kind + _text(_EVENT_NAME, name) + _text(_EVENT_CATEGORY, category)


@lru_cache(maxsize=4096)
def end(track: int) -> bytes:
    """Return the end of the innermost slice of a track."""
    return _number(_EVENT_TYPE, _END) + _number(_EVENT_TRACK, track)


def event(when_ns: int, content: bytes) -> bytes:
    """Return the packet of a begin or an end with what belongs to it."""
    return _packet(_TIMESTAMP_TAG + _varint(when_ns) + _message(_EVENT, content))


def argument(name: str, value: str | int) -> bytes:
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
