"""OpenTelemetry spans as OTLP JSON: a span a call and a child a stage, at their times; as a file or by HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPException
from itertools import groupby
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ipcbench import __version__
from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.exporters.common import left_out, require
from ipcbench.trace.exporters.spans import WANTED, Span, derived_id, spans
from ipcbench.trace.readers.calls import Process
from ipcbench.trace.readers.everything import Source

BATCH_SPANS = 500
_PATH = "/v1/traces"
_TIMEOUT_S = 10.0
_INTERNAL = 1
_KINDS = {"": _INTERNAL, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
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
    require(count, source, WANTED)
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
    require(count, source, WANTED)
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
    batch: list[tuple[Process, _Span]] = []
    for span in spans(source):
        for made in _with_stages(span):
            batch.append((span.row.process, made))
            if len(batch) == BATCH_SPANS:
                yield batch
                batch = []
    if batch:
        yield batch


def _with_stages(span: Span) -> Iterator[_Span]:
    """Yield the span of a call and those of its stages, if it has more than one."""
    row = span.row
    made: _Span = {"traceId": row.trace_id, "spanId": span.span_id}
    if span.parent_id:
        made["parentSpanId"] = span.parent_id
    made |= {
        "name": row.method,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.begin_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.facts()),
    }
    if row.failed:
        made["status"] = {"code": _ERROR, "message": row.error}
    yield made
    for name, begin, end in span.stages():
        yield {
            "traceId": row.trace_id,
            "spanId": derived_id(row, f"{row.role} {name}"),
            "parentSpanId": span.span_id,
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(begin),
            "endTimeUnixNano": str(end),
        }


def _attributes(values: dict[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
        if value != ""
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
