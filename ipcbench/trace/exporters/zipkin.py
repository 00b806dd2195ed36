"""Zipkin's JSON (v2): a list with a span a call; its stages are annotations, and how long they took are tags."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import IO, Any
from urllib.parse import urlsplit

from ipcbench.trace.exporters.common import left_out, require
from ipcbench.trace.exporters.spans import WANTED, Span, spans
from ipcbench.trace.readers.calls import FAR_SIDES, Row
from ipcbench.trace.readers.everything import Source


def write(source: Source, out: IO[bytes]) -> tuple[str, ...]:
    """Write all calls that have a time; times are in µs since 1970, and no call is shorter than 1 µs.

    Raises:
        StoreError: none has.
    """
    count = 0
    for count, span in enumerate(spans(source), 1):
        out.write((b",\n" if count > 1 else b"[\n") + json.dumps(_zipkin(span), separators=(",", ":")).encode())
    require(count, source, WANTED)
    out.write(b"\n]\n")
    return left_out(source)


def _zipkin(span: Span) -> dict[str, Any]:
    row = span.row
    fields: dict[str, Any] = {
        "traceId": row.trace_id,
        "id": span.span_id,
        "parentId": span.parent_id,
        "kind": span.kind,
        "name": row.method,
        "timestamp": span.begin_ns // 1000,
        "duration": max(1, round(row.total_ns / 1000)),
        "localEndpoint": {"serviceName": row.process.service},
        "remoteEndpoint": _remote(row),
        "annotations": [{"timestamp": begin // 1000, "value": name} for name, begin, _ in span.stages()],
        "tags": _tags(span),
    }
    return {key: value for key, value in fields.items() if value}


def _tags(span: Span) -> dict[str, str]:
    row = span.row
    tags = {key: str(value) for key, value in span.facts().items()}
    tags |= {f"ipcbench.{name}_ns": str(end - begin) for name, begin, end in span.stages()}
    if row.process.host:
        tags |= {"host.name": row.process.host, "process.pid": str(row.process.pid)}
    if row.failed:
        tags["error"] = row.error or "failed"
    return tags


def _remote(row: Row) -> dict[str, str | int]:
    """Return where a call went: an address if its peer is one, else the peer's name. What a server names as its peer
    may be its own address, so that it has none.
    """
    if not row.peer or row.role in FAR_SIDES:
        return {}
    try:
        parts = urlsplit(row.peer)
        address = ip_address(parts.hostname or "")
        return {f"ipv{address.version}": str(address)} | ({"port": parts.port} if parts.port else {})
    except ValueError:
        return {"serviceName": row.peer}
