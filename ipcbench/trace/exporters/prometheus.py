"""Prometheus text: how long the calls of each method took, as histograms, and counters beside them.

All calls are in it, those without a record of their own too. The limits of the buckets are limits of the trace's bins,
one ns below the powers of two, so that counts are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Final

import numpy as np

from ipcbench.stats.histogram import bin_index
from ipcbench.trace.exporters.common import require
from ipcbench.trace.live.watch import Growth
from ipcbench.trace.readers.batch import Bulk, Segment
from ipcbench.trace.readers.by_method import MOST_METHODS, OTHER, MethodTotals
from ipcbench.trace.readers.calls import ROLES, Calls
from ipcbench.trace.readers.everything import Source

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LIMITS_NS = tuple(2**power - 1 for power in range(10, 38))
"""1 µs to 137 s."""

_Key = tuple[str, str, str]


class Totals:
    """Totals since the beginning, by method, service and side; none of them ever shrinks."""

    def __init__(self) -> None:
        self._sums: dict[_Key, MethodTotals] = {}

    @property
    def calls_count(self) -> int:
        """All calls."""
        return sum(totals.calls_count for totals in self._sums.values())

    def add(self, calls: Calls) -> None:
        """Add calls with records."""
        for number, method in enumerate(calls.batch.methods):
            self._of(calls.batch.segment, method).add_calls(calls, number)

    def add_histogram(self, histogram: Bulk | Growth) -> None:
        """Add calls without records."""
        self._of(histogram.segment, histogram.method).add_histogram(histogram)

    def _of(self, segment: Segment, method: str) -> MethodTotals:
        side = ROLES[segment.role & 3]
        service = segment.name.removesuffix(f" ({side})")
        key = (method, service, side)
        if key not in self._sums and len(self._sums) >= MOST_METHODS:
            key = (OTHER, OTHER, side)
        return self._sums.setdefault(key, MethodTotals())

    def text(self) -> str:
        """Return the exposition text; with no call at all, only what the families are."""
        lines: list[str] = []
        for name, kind, words, values in _FAMILIES:
            lines += [f"# HELP ipcbench_{name} {words}", f"# TYPE ipcbench_{name} {kind}"]
            for key, sums in self._sums.items():
                lines += [f"ipcbench_{name}{line}" for line in values(_labels(key), sums)]
        return "\n".join(lines) + "\n"


def _labels(key: _Key) -> str:
    names = ("method", "service", "side")
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, key, strict=True))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _buckets(labels: str, sums: MethodTotals) -> Iterator[str]:
    cumulated = np.cumsum(sums.counts)
    below = cumulated[bin_index(np.array(_LIMITS_NS))].tolist()
    for limit_ns, count in zip(_LIMITS_NS, below, strict=True):
        yield f'_bucket{{{labels},le="{limit_ns / 1e9!r}"}} {count}'
    yield f'_bucket{{{labels},le="+Inf"}} {int(cumulated[-1])}'
    yield f"_sum{{{labels}}} {sums.total_ns / 1e9!r}"
    yield f"_count{{{labels}}} {int(cumulated[-1])}"


def _stage_lines(labels: str, sums: MethodTotals) -> Iterator[str]:
    for name, ns in sums.stage_ns.items():
        yield f'{{{labels},stage="{_escaped(name)}"}} {ns / 1e9!r}'


def _single(value: Callable[[MethodTotals], int | None]) -> Callable[[str, MethodTotals], Iterator[str]]:
    """Return what yields the line of a single value; none where that is None."""

    def lines(labels: str, sums: MethodTotals) -> Iterator[str]:
        if (known := value(sums)) is not None:
            yield f"{{{labels}}} {known}"

    return lines


_FAMILIES: Final[tuple[tuple[str, str, str, Callable[[str, MethodTotals], Iterator[str]]], ...]] = (
    ("call_duration_seconds", "histogram", "How long timed calls took.", _buckets),
    ("stage_seconds_total", "counter", "Time in each stage of timed calls.", _stage_lines),
    (
        "failed_calls_total",
        "counter",
        "Calls that ended with an error; none for methods of which some were only counted.",
        _single(lambda totals: None if totals.untimed_count else totals.failed_count),
    ),
    ("untimed_calls_total", "counter", "Calls whose time is not known.", _single(lambda totals: totals.untimed_count)),
    (
        "sent_bytes_total",
        "counter",
        "Bytes sent by calls that noted them.",
        _single(lambda totals: totals.sent_bytes if totals.sized_count else None),
    ),
    (
        "received_bytes_total",
        "counter",
        "Bytes received by calls that noted them.",
        _single(lambda totals: totals.recv_bytes if totals.sized_count else None),
    ),
)


def write(source: Source, out: IO[bytes]) -> tuple[str, ...]:
    """Write the sums of everything there is."""
    totals = Totals()
    for calls in source.calls():
        totals.add(calls)
    for bulk in source.bulks():
        totals.add_histogram(bulk)
    require(totals.calls_count, source, "call")
    out.write(totals.text().encode(errors="replace"))
    damaged = source.notes.damaged_count
    return (f"{damaged:,} damaged: {source.notes.examples[0]}",) if damaged else ()
