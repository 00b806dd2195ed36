"""HdrHistogram log, version 1.3: a tag per series, a line per trial; written without a library.

    #[Histogram log format version 1.3]
    #[StartTime: 1700000000.000 (seconds since epoch), 2023-11-14T22:13:20Z]
    #[BaseTime: 1700000000.000 (seconds since epoch)]
    "StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
    Tag=zmq.dict-1000-55039B.r3.reader-0.response,<s since BaseTime>,<length s>,<max ms>,<base64>

Values are nanoseconds; the maximum of a line is in milliseconds, as HdrHistogram's own writer has it.
"""

from __future__ import annotations

import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from ipcbench.analysis.exporters.common import Export, Selection, cell_parts, matched_rows, rate_of, select
from ipcbench.analysis.summary.cells import Setting
from ipcbench.analysis.summary.notes import one_line
from ipcbench.results.model import EndpointResult, TrialResult
from ipcbench.results.store import Run
from ipcbench.stats.estimates import IntArray
from ipcbench.stats.histogram import SIGNIFICANT_DIGITS, Histogram, bin_index
from ipcbench.util.bins import BIN_COUNT

_ENCODING_COOKIE = 0x1C849303 | 0x10
_COMPRESSION_COOKIE = 0x1C849304 | 0x10
_HOUR_NS = 3_600_000_000_000
"""Smallest range that a histogram declares: readers add up histograms of equal range without resizing."""
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9_.:+-]")


class _Times(NamedTuple):
    endpoint: EndpointResult
    metric: str
    values_ns: IntArray
    all_counts: IntArray | None = None
    """By bin, all messages of a window too long to store each; `values_ns` then are a part of them."""

    @property
    def stride(self) -> int:
        """Return N if every Nth value is in the line."""
        return 1 if self.all_counts is not None else self.endpoint.sample_stride

    def histogram(self) -> Histogram:
        """Return the histogram of all known values."""
        latency = self.endpoint.latency
        if self.all_counts is None or latency is None:
            return Histogram(self.values_ns)
        return Histogram.of_counts(self.all_counts, round(latency.max_ns))


def as_hlog(run: Run) -> Export:
    """Return all recorded times of a run as a histogram log.

    Raises:
        StoreError: there is no trial, or no time, to write.
    """
    selection = select(run, ("paced", "pingpong", "saturate"), "hlog")
    base_s = min(run.info.started_unix_s, *(trial.started_unix_s for trial in selection.trials))
    lines: list[str] = []
    thinned: dict[str, int] = {}
    notes: dict[str, None] = {}
    for trial in sorted(selection.trials, key=lambda trial: trial.started_unix_s):
        for times in _series(selection, trial):
            if times.values_ns.size and int(times.values_ns.min()) < 0:
                selection.leave_out(
                    trial, f"{times.endpoint.role} {times.metric}: a histogram holds no time below zero"
                )
            elif times.values_ns.size:
                tag = _tag(trial, times)
                thinned[tag] = max(thinned.get(tag, 1), times.stride)
                notes |= dict.fromkeys(f"#[{tag}: round {trial.spec.round_index} {one_line(n)}]" for n in trial.notes)
                lines.append(_line(tag, trial.started_unix_s - base_s, times))
    selection.require(lines, "times for hlog")
    header = [
        "#[ipcbench: values are nanoseconds]",
        *(f"#[{tag}: one value in up to {stride} is kept]" for tag, stride in sorted(thinned.items()) if stride > 1),
        *sorted(notes),
        "#[Histogram log format version 1.3]",
        f"#[StartTime: {base_s:.3f} (seconds since epoch), {datetime.fromtimestamp(base_s, UTC):%Y-%m-%dT%H:%M:%SZ}]",
        f"#[BaseTime: {base_s:.3f} (seconds since epoch)]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    return selection.export("".join(f"{line}\n" for line in (*header, *lines)))


def _series(selection: Selection, trial: TrialResult) -> Iterator[_Times]:
    """Yield the times that the mode of a trial records; a missing column is noted as left out."""
    columns = selection.samples(trial)
    if not columns:
        return
    times_of = {"paced": _paced, "pingpong": _pingpong, "saturate": _saturate}[trial.spec.mode]
    for endpoint in trial.endpoints:
        for metric, values in times_of(columns, endpoint).items():
            if values is None:
                selection.leave_out(trial, f"{endpoint.role} has no {metric} times")
            else:
                counts = columns.get(f"{endpoint.role}.latency_bins") if metric == "response" else None
                usable = counts is not None and counts.shape == (BIN_COUNT,) and int(counts.min()) >= 0
                yield _Times(endpoint, metric, values, counts if usable else None)


_ByMetric = Mapping[str, IntArray | None]


def _paced(columns: Mapping[str, IntArray], endpoint: EndpointResult) -> _ByMetric:
    if endpoint.role == "writer":
        sent, intended = columns.get("writer.sent_ns"), columns.get("writer.intended_ns")
        delay = sent - intended if sent is not None and intended is not None and sent.size == intended.size else None
        return {"delay": delay, "write": columns.get("writer.write_ns")}
    rows = matched_rows(columns, endpoint.role)
    service = None
    if rows is not None:
        service = columns[f"{endpoint.role}.received_ns"][rows.reader] - columns["writer.sent_ns"][rows.writer]
    return {"response": columns.get(f"{endpoint.role}.latency_ns"), "service": service}


def _pingpong(columns: Mapping[str, IntArray], endpoint: EndpointResult) -> _ByMetric:
    if endpoint.role == "writer":
        return {"round-trip": columns.get("writer.round_trip_ns")}
    return {"service": columns.get(f"{endpoint.role}.latency_ns")}  # its latency counts from the actual send


def _saturate(columns: Mapping[str, IntArray], endpoint: EndpointResult) -> _ByMetric:
    call = "write" if endpoint.role == "writer" else "read"
    return {f"saturated-{call}": columns.get(f"{endpoint.role}.{call}_ns")}


def _tag(trial: TrialResult, times: _Times) -> str:
    parts = cell_parts(Setting.of(trial), trial.spec.backend, rate_of(trial))
    tail = ("tail",) if trial.spec.tail else ()
    return _NOT_IN_A_TAG.sub("_", ".".join((*parts, *tail, times.endpoint.role, times.metric)))


def _line(tag: str, start_s: float, times: _Times) -> str:
    histogram = times.histogram()
    length_s = max(0, times.endpoint.last_ns - times.endpoint.first_ns) / 1e9
    return f"Tag={tag},{start_s:.3f},{length_s:.3f},{histogram.max / 1e6:.3f},{encode(histogram)}"


def encode(histogram: Histogram) -> str:
    """Return a histogram in HdrHistogram's V2 encoding, compressed, in base64."""
    body = b"".join(_words(histogram.counts[: int(bin_index(histogram.max)) + 1]))
    header = struct.pack(
        ">IIiiqqd", _ENCODING_COOKIE, len(body), 0, SIGNIFICANT_DIGITS, 1, max(_HOUR_NS, histogram.max), 1.0
    )
    packed = zlib.compress(header + body, 9)
    return b64encode(struct.pack(">II", _COMPRESSION_COOKIE, len(packed)) + packed).decode("ascii")


def _words(counts: IntArray) -> Iterator[bytes]:
    """Yield the counts as signed numbers; a run of zeros is one negative number."""
    previous = -1
    for index in np.flatnonzero(counts).tolist():
        zeros = index - previous - 1
        if zeros:
            yield _zigzag(-zeros if zeros > 1 else 0)
        yield _zigzag(int(counts[index]))
        previous = index


def _zigzag(value: int) -> bytes:
    """Return a signed number as ZigZag LEB128; in this variant the ninth byte holds eight bits and is the last."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while rest > 0x7F and len(encoded) < 8:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
