"""Charts against the payload's size: latency, throughput, share of memory bandwidth, share of decoding, reader skew.

What does not live here: charts of single settings (chart_cells.py), of several runs (chart_fanout.py), and the drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby

from ipcbench.analysis.cells import CellSummary, Setting, SettingSummary, Summary
from ipcbench.analysis.charts import (
    Axis,
    Chart,
    ChartGroup,
    Marks,
    Point,
    Series,
    finite_series,
    shown_name,
    spread_ticks,
)
from ipcbench.analysis.notes import one_line
from ipcbench.analysis.wording import family_words, size_words
from ipcbench.measure.stats import Interval
from ipcbench.units import format_significant

_MAX_MISSING = 6


@dataclass(frozen=True, slots=True)
class _Quantity:
    """What is drawn against the size."""

    key: str
    title: str
    reading: str
    y: Axis
    what: str
    """Before the value when a point is pointed at."""
    value: Callable[[CellSummary], Interval | None]
    """In the unit of the axis."""
    marks: Marks = "band"


def size_groups(summary: Summary, skew_ratios: Mapping[tuple[Setting, str], float]) -> tuple[ChartGroup, ...]:
    """Return the groups of charts against the payload's size; a quantity that was not measured has none.

    Args:
        summary: of the run.
        skew_ratios: (setting, backend) → median latency of the slowest reader over that of the fastest.
    """
    families = [list(group) for _, group in groupby(summary.settings, key=lambda one: family_of(one.setting))]
    colors = color_numbers(summary)
    found = []
    for quantity in (*_QUANTITIES, _skew_quantity(skew_ratios)):
        charts = [_chart(quantity, family, colors, several=len(families) > 1) for family in families]
        if quantity.key == "throughput":
            charts = [_with_ceiling(one, family, summary) for one, family in zip(charts, families, strict=True)]
        drawn = tuple(one for one in charts if any(series.color >= 0 for series in one.series))
        if drawn:
            found.append(ChartGroup(quantity.key, quantity.title, quantity.reading, drawn))
    return tuple(found)


def family_of(setting: Setting) -> tuple[object, ...]:
    """Return all of a setting but its size."""
    return astuple(replace(setting, size=0, payload_bytes=0))


def color_numbers(summary: Summary) -> dict[str, int]:
    """Return backend → number, in the order of the sweep, so that a backend has one colour in every chart."""
    planned = [str(one) for one in summary.info.sweep.get("backends", ())]
    measured = [cell.backend for one in summary.settings for cell in one.cells]
    return {name: number for number, name in enumerate(dict.fromkeys([*planned, *measured]))}


def with_interval(interval: Interval, unit: str) -> str:
    """Return `53.7 µs [45.1–60.2]`."""
    text = f"{format_significant(interval.estimate)} {unit}"
    if interval.low == interval.high:
        return text
    return f"{text} [{format_significant(interval.low)}–{format_significant(interval.high)}]"


def scaled(interval: Interval | None, factor: float) -> Interval | None:
    """Return the interval in another unit."""
    if interval is None:
        return None
    low, estimate, high = (factor * one for one in (interval.low, interval.estimate, interval.high))
    return Interval(low, estimate, high, interval.level)


def is_noisy(cell: CellSummary) -> bool:
    """Return whether a cell's point is to be drawn hollow."""
    return any(note.startswith("noisy") or " trials failed" in note for note in cell.notes)


def setting_line(setting: Setting) -> str:
    """Return a size in its own unit and in bytes, for whoever points at a point."""
    words, count = size_words(setting), f"{setting.payload_bytes:,} B"
    return words if words == count else f"{words} = {count}"


def payload_line(setting: Setting) -> str:
    """Return kind and size as a title of a setting begins with."""
    return f"{setting.payload} of {size_words(setting)} = {setting.payload_bytes:,} B"


def gaps(cells: Sequence[CellSummary], where: str = "") -> Iterator[str]:
    """Yield a line for each cell without figures, and why."""
    for cell in cells:
        if cell.status != "ok":
            place = f" at {where}" if where else ""
            yield f"{shown_name(cell.backend)}{place} {cell.status}: {one_line(cell.reason)}"


def common_notes(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield the grave notes that all measured cells bear."""
    measured = [cell for cell in cells if cell.status == "ok"]
    for note in measured[0].notes if measured else ():
        if note.startswith("oversubscribed") and all(note in cell.notes for cell in measured):
            yield "All cells are oversubscribed: processes take turns on too few cores."


def _exact(value: float | None, factor: float) -> Interval | None:
    return None if value is None else Interval(value * factor, value * factor, value * factor)


def _throughput(cell: CellSummary) -> Interval | None:
    interval = scaled(cell.throughput_interval_per_s, 1e-3)
    return interval if interval is not None else _exact(cell.throughput_per_s, 1e-3)


def _memory_share(cell: CellSummary) -> Interval | None:
    share, rate, interval = cell.memory_bandwidth_ratio, cell.throughput_per_s, cell.throughput_interval_per_s
    if share is None or not rate or interval is None:
        return _exact(share, 100.0)
    return scaled(interval, 100.0 * share / rate)


def _decode_share(cell: CellSummary) -> Interval | None:
    """Return decoding as a share of delivery and decoding together, %; the interval is that of the latency alone."""
    decode, p50 = cell.decode_p50_ns, cell.latency_p50_ns
    if decode is None or p50 is None or decode <= 0:
        return None
    low, middle, high = (100.0 * decode / (decode + one) for one in (p50.high, p50.estimate, p50.low))
    return Interval(low, middle, high)


_QUANTITIES = (
    _Quantity(
        "latency",
        "One-way latency",
        "Receipt − intended send time of paced messages, median over all readers and rounds; lower is better.",
        Axis("One-way latency, p50", "µs", log=True),
        "one-way p50",
        lambda cell: scaled(cell.latency_p50_ns, 1e-3),
    ),
    _Quantity(
        "round-trip",
        "Round trip",
        "From a send to the last reader's reply, one message at a time; lower is better.",
        Axis("Round trip, p50", "µs", log=True),
        "round trip p50",
        lambda cell: scaled(cell.round_trip_p50_ns, 1e-3),
    ),
    _Quantity(
        "throughput",
        "Throughput",
        "Messages per second that every reader got while the writer wrote as fast as it could; higher is better.",
        Axis("Throughput to each reader", "k messages/s", log=True),
        "throughput",
        _throughput,
    ),
    _Quantity(
        "memory-share",
        "Share of the memory-copy ceiling",
        "Payload bytes per second to one reader as a share of what one core copies in memory at that size. Above 100 % "
        "nothing is copied: readers look at the writer's memory.",
        Axis("Share of one core's memory copy", "%", log=True),
        "of a memory copy",
        _memory_share,
    ),
    _Quantity(
        "decode-share",
        "Share of deserialization",
        "Decoding one payload as a share of delivering and decoding it, medians of both. Where it is high, another "
        "transport changes little and another codec much.",
        Axis("Decoding, of latency + decoding", "%", log=False),
        "decoding is",
        _decode_share,
    ),
)


def _skew_quantity(skew_ratios: Mapping[tuple[Setting, str], float]) -> _Quantity:
    return _Quantity(
        "reader-skew",
        "Slowest against fastest reader",
        "Median latency of a round's slowest reader over that of its fastest, median over the rounds; 1 is fair.",
        Axis("Slowest / fastest reader, p50", "×", log=True),
        "slowest / fastest",
        lambda cell: _exact(skew_ratios.get((cell.setting, cell.backend)), 1.0),
    )


def _chart(quantity: _Quantity, family: Sequence[SettingSummary], colors: Mapping[str, int], *, several: bool) -> Chart:
    first = family[0].setting
    backends = sorted({cell.backend for one in family for cell in one.cells}, key=lambda name: colors[name])
    missing = [line for one in family for line in gaps(one.cells, size_words(one.setting))]
    notes = [*dict.fromkeys(note for one in family for note in common_notes(one.cells)), *missing[:_MAX_MISSING]]
    if len(missing) > _MAX_MISSING:
        notes.append(f"{len(missing) - _MAX_MISSING} more cells have no figures; see the tables.")
    return Chart(
        title=f"{quantity.title} by payload size",
        setting=f"{first.payload}, {family_words(first)}",
        choice=f"{first.payload}, {family_words(first)}" if several else "",
        x=Axis("Encoded payload", "bytes", log=True, ticks=_size_ticks([one.setting for one in family])),
        y=quantity.y,
        series=finite_series([_series(quantity, family, name, colors[name]) for name in backends]),
        notes=tuple(notes),
    )


def _size_ticks(settings: Sequence[Setting]) -> tuple[tuple[float, str], ...]:
    return spread_ticks(
        [(_size_x(one), _size_text(one)) for one in sorted(settings, key=lambda one: one.payload_bytes)]
    )


def _size_x(setting: Setting) -> float:
    """Return the place of a size on a log axis, on which an empty payload stands at one byte."""
    return float(max(1, setting.payload_bytes))


def _size_text(setting: Setting) -> str:
    return f"{setting.payload_bytes:,} B" if setting.payload == "dict" else size_words(setting)


def _series(quantity: _Quantity, family: Sequence[SettingSummary], backend: str, color: int) -> Series:
    points = []
    for one in family:
        for cell in one.cells:
            value = quantity.value(cell) if cell.backend == backend else None
            if value is not None:
                said = f"{quantity.what}: {with_interval(value, quantity.y.unit)}"
                lines = (setting_line(one.setting), said, *_extra(quantity, cell), *cell.notes[:2])
                x = _size_x(one.setting)
                points.append(Point(x, value.estimate, lines, value.low, value.high, noisy=is_noisy(cell)))
    return Series(shown_name(backend), color, quantity.marks, tuple(points))


def _extra(quantity: _Quantity, cell: CellSummary) -> Iterator[str]:
    if quantity.key == "latency" and cell.latency_p99_ns is not None:
        yield f"one-way p99: {format_significant(cell.latency_p99_ns.estimate / 1e3)} µs"
    if quantity.key in {"throughput", "memory-share"} and cell.throughput_bytes_per_s is not None:
        yield f"{format_significant(cell.throughput_bytes_per_s / 1e6)} MB/s"
    if quantity.key == "decode-share" and cell.decode_p50_ns is not None and cell.latency_p50_ns is not None:
        decode, latency = (format_significant(one / 1e3) for one in (cell.decode_p50_ns, cell.latency_p50_ns.estimate))
        yield f"{decode} µs decoding, {latency} µs one-way"


def _with_ceiling(chart: Chart, family: Sequence[SettingSummary], summary: Summary) -> Chart:
    """Return the chart with the rate at which one core could copy the payload in memory."""
    floor = summary.info.floor
    points = []
    for setting in (one.setting for one in family):
        rate = floor.memcpy_bytes_per_s.get(str(setting.payload_bytes)) if floor is not None else None
        if rate and setting.payload_bytes:
            value = rate / setting.payload_bytes / 1e3
            said = f"{format_significant(value)} k messages/s", f"{format_significant(rate / 1e6)} MB/s"
            points.append(Point(_size_x(setting), value, (setting_line(setting), *said)))
    ceiling = finite_series([Series("memory copy, one core", -1, "reference", tuple(points))])
    return replace(chart, series=chart.series + ceiling) if chart.series else chart
