"""JSON for github-action-benchmark: customSmallerIsBetter (latency) and customBiggerIsBetter (throughput).

A name identifies a series over years of commits, so it contains neither host nor version. The action compares only with
the previous point and ignores intervals: `range` is for readers, and `alert-threshold` must be wider than it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from ipcbench.analysis.exporters.common import Export, select, series_name
from ipcbench.analysis.summary.cells import RESOLVED_RATIO, CellSummary, Metric, SettingSummary, time_of
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.wording import plural
from ipcbench.results.store import Run
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_significant


class _Figure(NamedTuple):
    metric: str
    value: float
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
        _entry(ranking, cell, figure, "us")
        for ranking in summarise(run).settings
        for cell in ranking.cells
        for figure in _latencies(cell)
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
        _entry(ranking, cell, _Figure("throughput", rate, cell.throughput_interval_per_s, is_paced=False), "messages/s")
        for ranking in summarise(run).settings
        for cell in ranking.cells
        if (rate := cell.throughput_per_s) is not None
    ]
    selection.require(entries, "figure for github-throughput")
    return selection.export(_text(entries))


def _latencies(cell: CellSummary) -> Iterator[_Figure]:
    for metric, interval, is_paced in (
        ("one-way-p50", cell.latency_p50_ns, True),
        ("one-way-p99", cell.latency_p99_ns, True),
        ("round-trip-p50", cell.round_trip_p50_ns, False),
        ("round-trip-p99", cell.round_trip_p99_ns, False),
    ):
        if interval is not None and (metric.endswith("p50") or interval.high <= RESOLVED_RATIO * interval.low):
            us = Interval(interval.low / 1e3, interval.estimate / 1e3, interval.high / 1e3)
            yield _Figure(metric, us.estimate, us, is_paced)


def _entry(ranking: SettingSummary, cell: CellSummary, figure: _Figure, unit: str) -> dict[str, Any]:
    rate_per_s = ranking.rate_per_s if figure.is_paced else None
    entry: dict[str, Any] = {
        "name": series_name(cell.setting, cell.backend, rate_per_s, figure.metric),
        "unit": unit,
        "value": figure.value,
    }
    if figure.interval is not None:
        half = (figure.interval.high - figure.interval.low) / 2
        entry["range"] = f"± {format_significant(half).replace(',', '')}"
    entry["extra"] = "\n".join(_extra(rate_per_s, cell, figure, unit))
    return entry


def _extra(rate_per_s: float | None, cell: CellSummary, figure: _Figure, unit: str) -> Iterator[str]:
    """Yield the lines of the tooltip."""
    metric: Metric = "latency" if figure.is_paced else "throughput" if figure.metric == "throughput" else "round trip"
    time = None if cell.figures is None else time_of(cell.figures, metric)
    rounds = plural(cell.rounds_count if time is None else time.rounds_count, "round", "rounds")
    yield f"{rounds}, {cell.setting.codec}, {cell.setting.delivery}"
    if figure.interval is not None:
        low, high = format_significant(figure.interval.low), format_significant(figure.interval.high)
        yield f"95 % interval {low} to {high} {unit}"
    if rate_per_s is not None:
        yield f"offered {format_significant(rate_per_s)} messages/s"
    if figure.metric == "throughput" and cell.throughput_bytes_per_s is not None:
        yield f"{format_significant(cell.throughput_bytes_per_s / 1e6)} MB/s of payload to each reader"
    yield from cell.notes


def _text(entries: list[dict[str, Any]]) -> str:
    return json.dumps(entries, indent=1, allow_nan=False) + "\n"
