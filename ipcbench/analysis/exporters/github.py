"""JSON for github-action-benchmark: customSmallerIsBetter (latency) and customBiggerIsBetter (throughput).

A name identifies a series over years of commits, so neither host nor version is in it. The action only compares with
the point before and knows no interval, so `range` is for the eye; `alert-threshold` must be wider than it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from ipcbench.analysis.exporters.common import Export, select, series_name
from ipcbench.analysis.summary.cells import CellSummary, SettingSummary
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.wording import plural
from ipcbench.results.store import Run
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_significant


class _Point(NamedTuple):
    metric: str
    value: float | None
    interval: Interval | None
    """In the unit of the value."""
    is_paced: bool


def as_github_latency(run: Run) -> Export:
    """Return one-way latencies and round trips in microseconds, the smaller the better.

    Raises:
        StoreError: there is no trial, or no figure, to write.
    """
    selection = select(run, ("paced", "pingpong"), "github-latency")
    selection.check_samples()
    entries = [
        _entry(one, cell, point, "us")
        for one in summarise(run).settings
        for cell in one.cells
        for point in _latencies(cell)
        if point.value is not None
    ]
    selection.require(entries, "figure for github-latency")
    return selection.export(_text(entries))


def as_github_throughput(run: Run) -> Export:
    """Return messages per second to every reader, the bigger the better.

    Raises:
        StoreError: there is no trial, or no figure, to write.
    """
    selection = select(run, ("saturate",), "github-throughput")
    entries = [
        _entry(one, cell, point, "messages/s")
        for one in summarise(run).settings
        for cell in one.cells
        for point in [_Point("throughput", cell.throughput_per_s, cell.throughput_interval_per_s, is_paced=False)]
        if point.value is not None
    ]
    selection.require(entries, "figure for github-throughput")
    return selection.export(_text(entries))


def _latencies(cell: CellSummary) -> Iterator[_Point]:
    for metric, interval, is_paced in (
        ("one-way-p50", cell.latency_p50_ns, True),
        ("one-way-p99", cell.latency_p99_ns, True),
        ("round-trip-p50", cell.round_trip_p50_ns, False),
        ("round-trip-p99", cell.round_trip_p99_ns, False),
    ):
        if interval is not None:
            us = Interval(interval.low / 1e3, interval.estimate / 1e3, interval.high / 1e3, interval.level)
            yield _Point(metric, us.estimate, us, is_paced)


def _entry(one: SettingSummary, cell: CellSummary, point: _Point, unit: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": series_name(one.setting, cell.backend, one.rate_per_s if point.is_paced else None, point.metric),
        "unit": unit,
        "value": point.value,
    }
    if point.interval is not None:
        half = (point.interval.high - point.interval.low) / 2
        entry["range"] = f"± {format_significant(half).replace(',', '')}"
    entry["extra"] = "\n".join(_extra(one, cell, point, unit))
    return entry


def _extra(one: SettingSummary, cell: CellSummary, point: _Point, unit: str) -> Iterator[str]:
    """Yield what the chart shows when pointed at."""
    setting = one.setting
    yield f"{plural(cell.rounds_count, 'round', 'rounds')}, {setting.codec}, {setting.delivery}"
    if point.interval is not None:
        low, high = (format_significant(value) for value in (point.interval.low, point.interval.high))
        yield f"{100 * point.interval.level:g} % interval {low} to {high} {unit}"
    if point.is_paced and one.rate_per_s is not None:
        yield f"offered {format_significant(one.rate_per_s)} messages/s"
    if point.metric == "throughput" and cell.throughput_bytes_per_s is not None:
        yield f"{format_significant(cell.throughput_bytes_per_s / 1e6)} MB/s of payload to each reader"
    yield from cell.notes


def _text(entries: list[dict[str, Any]]) -> str:
    return json.dumps(entries, indent=1, allow_nan=False) + "\n"
