"""Perfetto's protobuf trace: calls as slices on tracks, their stages inside them, flows from client to server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from ipcbench.trace.exporters import packets
from ipcbench.trace.exporters.chrome import arguments, process_name, track_name
from ipcbench.trace.exporters.common import Scan, Tracks, at_ns, left_out, require, scan, stages_of
from ipcbench.trace.readers.calls import FAR_SIDES, Process, Row
from ipcbench.trace.readers.everything import Source
from ipcbench.trace.schema import CLIENT

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
    out.write(packets.clear())
    for row, track in tracks.place(source.in_order()):
        who = row.process.identity
        if who not in processes:
            processes[who] = _FIRST_PROCESS + len(processes)
            out.write(_process_track(row.process, processes[who]))
        if track.number not in known:
            known.add(track.number)
            out.write(packets.track(track.number, track_name(row.process, track.index), processes[who]))
        out.writelines(_call(row, track.number, scanned))
    require(len(known), source)
    return left_out(source)


def _process_track(process: Process, uuid: int) -> bytes:
    # Viewers merge two processes with the same pid; a process without a known pid gets one that none can have.
    pid = process.pid or uuid - _FIRST_PROCESS + 2**30
    return packets.process_track(uuid, pid, process_name(process))


def _call(row: Row, track: int, scanned: Scan) -> Iterator[bytes]:
    """Yield the packets of a call: its begin, begin and end of each stage, its end."""
    offset = at_ns(row) - row.begin_ns
    more = b"".join(packets.argument(name, value) for name, value in arguments(row).items())
    if (row.trace_id, row.span) in scanned.linked and row.role in {CLIENT, *FAR_SIDES}:
        more += packets.flow(row.span, is_last=row.role != CLIENT)
    end = packets.end(track)
    yield packets.event(row.begin_ns + offset, packets.begin(track, row.method, "call") + more)
    for name, begin_ns, end_ns in stages_of(row) if len(row.stages) > 1 else ():
        yield packets.event(begin_ns + offset, packets.begin(track, name, "stage"))
        yield packets.event(end_ns + offset, end)
    yield packets.event(row.end_ns + offset, end)
