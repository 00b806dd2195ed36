"""Calls as CSV, one row per call: the columns of zmq_performance.log by their old names, then the others."""

from __future__ import annotations

import csv
import io
from typing import IO

from ipcbench.trace.exporters.common import left_out, require
from ipcbench.trace.readers.batch import PARTS
from ipcbench.trace.readers.calls import ROLES, Row
from ipcbench.trace.readers.everything import Source
from ipcbench.trace.schema import RPC

_OLD_STAGES = ("Serialize(ms)", "Send(ms)", "Recv(ms)", "Deserialize(ms)")
_OLD_REST = ("Total(ms)", "Sent(KB)", "Recv(KB)", "Throughput(MB/s)")
_MORE = ("Failed", "Error", "Side", "Peer", "Service", "Host", "PID", "Thread", "TraceID", "SpanID", "Begin(s)")


def write(source: Source, out: IO[bytes]) -> tuple[str, ...]:
    """Write all calls; a field is empty where a call does not have the stage or the value is unknown.

    Times are in ms, sizes in KiB, throughput in MiB/s as in the old log; `Begin(s)` counts from 1970. The four parts of
    a wait, known from the server's record, follow the stages.
    """
    others = [name for name in source.stages() if name not in RPC.stages]
    stages = [*RPC.stages, *others]
    names = [
        "ID", "Method", *_OLD_STAGES, *_OLD_REST, *(f"{name[:1].upper()}{name[1:]}(ms)" for name in others),
        *(f"Wait{part.capitalize()}(ms)" for part in PARTS), *_MORE,
    ]  # fmt: skip
    text = io.TextIOWrapper(out, encoding="utf-8", errors="replace", newline="", write_through=False)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    count = 0
    for count, row in enumerate(source.in_order(joined=True), 1):
        writer.writerow(_fields(count, row, stages))
    text.flush()
    text.detach()
    require(count, source)
    return left_out(source)


def _fields(number: int, row: Row, stages: list[str]) -> list[object]:
    times = row.stages_ns
    parts = [f"{times[name] / 1e6:.6f}" if name in times else "" for name in stages]
    sizes = ("" if size is None else f"{size / 1024:.2f}" for size in (row.sent_bytes, row.recv_bytes))
    speed = "" if row.mib_per_s is None else f"{row.mib_per_s:.2f}"
    old = [f"{row.total_ns / 1e6:.6f}" if row.is_timed else "", *sizes, speed]
    process, unix = row.process, row.begin_unix_ns
    begin = "" if unix is None else f"{unix // 10**9}.{unix % 10**9:09d}"
    span = f"{row.span:016x}" if row.trace_id else ""
    more = [int(row.failed), row.error, ROLES[row.role], row.peer, process.service, process.host, process.pid or "",
            process.tid or "", row.trace_id, span, begin]  # fmt: skip
    wait = ["" if ns is None else f"{ns / 1e6:.6f}" for ns in row.parts_ns]
    return [number, row.method, *parts[:4], *old, *parts[4:], *wait, *more]
