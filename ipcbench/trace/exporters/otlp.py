"""OpenTelemetry spans as OTLP JSON: a span a call and a child a stage, at their original times; as a file or by HTTP.

A call's server side has the same trace id and span id as its client side; here it becomes a child of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from http.client import HTTPException
from itertools import groupby
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ipcbench import __version__
from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.exporters.common import at_ns, left_out, require, scan, stages_of
from ipcbench.trace.readers.calls import FAR_SIDES, ROLES, Process, Row
from ipcbench.trace.readers.everything import Source
from ipcbench.trace.schema import CLIENT, RECEIVER, SERVER_SIDE

BATCH_SPANS = 500
_PATH = "/v1/traces"
_TIMEOUT_S = 10.0
_INTERNAL, _SERVER, _CLIENT, _CONSUMER = 1, 2, 3, 5
_KINDS = {CLIENT: _CLIENT, SERVER_SIDE: _SERVER, RECEIVER: _CONSUMER}
_ERROR = 2

_Span = dict[str, Any]


def write(source: Source, out: IO[bytes]) -> tuple[str, ...]:
    """Write a line for at most 500 spans, as the OTLP file exporter does.

    Raises:
        StoreError: no call has a time since 1970.
    """
    count = 0
    for batch in batches(source):
        count += 1
        out.write(json.dumps(_document(batch), separators=(",", ":")).encode() + b"\n")
    require(count, source, "call with a record that can be placed in time since 1970; logs have none")
    return left_out(source)


def send(source: Source, endpoint: str) -> tuple[int, tuple[str, ...]]:
    """Send all spans to a collector, at most 500 a request, and return how many it took, and what was left out.

    Args:
        source: the trace.
        endpoint: such as `http://localhost:4318`; without a path, `/v1/traces` is added.

    Raises:
        ConfigError: not the address of a collector.
        StoreError: it does not take them; the text says how many it had taken before.
    """
    url = _url(endpoint)
    count, rejected = 0, 0
    for batch in batches(source):
        try:
            rejected += _post(url, json.dumps(_document(batch), separators=(",", ":")).encode())
        except (OSError, HTTPException, ValueError) as error:
            raise StoreError(f"{url}: {_reason(error)}; {count:,} spans were sent before") from error
        count += len(batch)
    require(count, source, "call with a record that can be placed in time since 1970; logs have none")
    return count - rejected, left_out(source, f"{rejected:,} spans that the collector rejected" if rejected else "")


def _url(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known:
        raise ConfigError("--endpoint", endpoint, "the address of an OTLP/HTTP collector: http://localhost:4318")
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _PATH


def _post(url: str, data: bytes) -> int:
    """Send one request and return how many spans were rejected."""
    headers = {"Content-Type": "application/json", "User-Agent": f"ipcbench/{__version__}"}
    request = Request(url, data=data, headers=headers, method="POST")  # noqa: S310 # http or https, see _url
    with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        text = answer.read(2**16)
    try:
        return int(json.loads(text)["partialSuccess"]["rejectedSpans"])
    except (ValueError, KeyError, TypeError):
        return 0


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"answers {error.code} {error.reason}"
    return str(error.reason if isinstance(error, URLError) else error) or type(error).__name__


def batches(source: Source) -> Iterator[list[tuple[Process, _Span]]]:
    """Yield spans with their processes, at most 500 at a time."""
    linked = scan(source).linked
    batch: list[tuple[Process, _Span]] = []
    for row in source.in_order():
        if row.process.unix_ns is None or row.begin_ns < 0 or row.total_ns < 0:
            continue
        for span in _spans(row, is_linked=(row.trace_id, row.span) in linked):
            batch.append((row.process, span))
            if len(batch) == BATCH_SPANS:
                yield batch
                batch = []
    if batch:
        yield batch


def _spans(row: Row, *, is_linked: bool) -> Iterator[_Span]:
    """Yield the span of a call and those of its stages, if it has more than one."""
    span_id = f"{row.span:016x}"
    span: _Span = {"traceId": row.trace_id, "spanId": span_id}
    if row.role in FAR_SIDES:
        span["spanId"] = _derived(row, ROLES[row.role])
        if is_linked:
            span["parentSpanId"] = span_id
    offset = at_ns(row) - row.begin_ns
    span |= {
        "name": row.method,
        "kind": _KINDS.get(row.role, _INTERNAL),
        "startTimeUnixNano": str(at_ns(row)),
        "endTimeUnixNano": str(row.end_ns + offset),
        "attributes": _attributes({
            "ipcbench.schema": row.schema, "ipcbench.sent_bytes": row.sent_bytes, "ipcbench.recv_bytes": row.recv_bytes,
            "ipcbench.peer": row.peer, "error.type": row.error, "thread.id": row.process.tid,
        }),
    }  # fmt: skip
    if row.failed:
        span["status"] = {"code": _ERROR, "message": row.error}
    yield span
    for name, begin, end in stages_of(row) if len(row.stages) > 1 else ():
        yield {
            "traceId": row.trace_id,
            "spanId": _derived(row, f"{row.role} {name}"),
            "parentSpanId": span["spanId"],
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(begin + offset),
            "endTimeUnixNano": str(end + offset),
        }


def _derived(row: Row, what: str) -> str:
    """Return a span id that follows from that of a call."""
    return blake2b(f"{row.trace_id} {row.span} {what}".encode(errors="replace"), digest_size=8).hexdigest()


def _attributes(values: dict[str, str | int | None]) -> list[dict[str, Any]]:
    """Return the values that are known."""
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
        if value is not None and value != ""
    ]


def _document(batch: list[tuple[Process, _Span]]) -> dict[str, Any]:
    """Return the spans by process."""
    scope = {"name": "ipcbench.trace", "version": __version__}
    by_process = sorted(batch, key=lambda item: item[0].identity)
    return {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": _attributes({"service.name": service, "host.name": host, "process.pid": pid})
                },
                "scopeSpans": [{"scope": scope, "spans": [span for _, span in some]}],
            }
            for (service, host, pid), some in groupby(by_process, key=lambda item: item[0].identity)
        ]
    }
