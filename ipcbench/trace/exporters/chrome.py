"""Chrome trace JSON: a slice a call with its stages inside it, an arrow from each client to its server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from ipcbench.trace.exporters.common import Scan, Track, Tracks, at_ns, left_out, require, scan, stages_of
from ipcbench.trace.readers.calls import FAR_SIDES, ROLES, Process, Row
from ipcbench.trace.readers.everything import Source
from ipcbench.trace.schema import CLIENT

_Event = dict[str, Any]


def write(source: Source, out: IO[bytes]) -> tuple[str, ...]:
    """Write all calls that have a time; times are µs since the first one.

    Raises:
        StoreError: none has.
    """
    scanned = scan(source)
    tracks = Tracks()
    known: set[int] = set()
    processes: dict[tuple[str, str, int], int] = {}
    separator = b""
    out.write(b'{"displayTimeUnit":"ns","otherData":{"begin_unix_ns":"%d"},"traceEvents":[\n' % scanned.origin_ns)
    for row, track in tracks.place(source.in_order()):
        number = processes.setdefault(row.process.identity, len(processes) + 1)
        events = _call(row, number, track.number, scanned)
        if track.number not in known:
            known.add(track.number)
            events = [*_names(row, track, number), *events]
        for event in events:
            out.write(separator + json.dumps(event, separators=(",", ":")).encode())
            separator = b",\n"
    out.write(b"\n]}\n")
    require(len(known), source)
    return left_out(source)


def track_name(process: Process, index: int) -> str:
    """Return the title of a track."""
    thread = f"thread {process.tid}" if process.tid else "calls"
    return f"{thread}, {index + 1} at a time" if index else thread


def process_name(process: Process) -> str:
    """Return the title of a process."""
    return f"{process.service} ({process.host})" if process.host else process.service


def arguments(row: Row) -> dict[str, str | int]:
    """Return the details of a call beside its times."""
    values: dict[str, str | int | None] = {
        "schema": row.schema, "side": ROLES[row.role], "peer": row.peer, "error": row.error,
        "sent bytes": row.sent_bytes, "received bytes": row.recv_bytes, "trace id": row.trace_id,
    }  # fmt: skip
    return {key: value for key, value in values.items() if value is not None and value != ""}


def _names(row: Row, track: Track, number: int) -> Iterator[_Event]:
    title = process_name(row.process)
    if row.process.pid:
        title += f", pid {row.process.pid}"
    for name, value in (("process_name", title), ("thread_name", track_name(row.process, track.index))):
        yield {"ph": "M", "name": name, "pid": number, "tid": track.number, "args": {"name": value}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": number, "tid": track.number,
           "args": {"sort_index": track.number}}  # fmt: skip


def _call(row: Row, process: int, track: int, scanned: Scan) -> list[_Event]:
    offset = at_ns(row) - row.begin_ns - scanned.origin_ns
    place = {"pid": process, "tid": track, "cat": "call"}

    def slice_of(name: str, begin: int, end: int) -> _Event:
        return {"ph": "X", "name": name, "ts": (begin + offset) / 1e3, "dur": (end - begin) / 1e3, **place}

    events = [{**slice_of(row.method, row.begin_ns, row.end_ns), "args": arguments(row)}]
    if len(row.stages) > 1:
        events += [slice_of(*stage) for stage in stages_of(row)]
    if (row.trace_id, row.span) in scanned.linked:
        flow = {**place, "cat": "flow", "name": "request", "id": f"{row.span:016x}"}
        if row.role == CLIENT:
            events.append({"ph": "s", "ts": (departure_ns(row) + offset) / 1e3, **flow})
        elif row.role in FAR_SIDES:
            events.append({"ph": "f", "bp": "e", "ts": (row.begin_ns + offset) / 1e3, **flow})
    return events


def departure_ns(row: Row) -> int:
    """Return when a client's request left: at the begin of its stage `send`, if it has one."""
    return next((begin for name, begin, _ in stages_of(row) if name == "send"), row.begin_ns)
