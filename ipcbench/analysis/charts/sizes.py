"""Charts against payload size: latency, throughput, share of memory bandwidth, share of decoding, reader skew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ipcbench.analysis.summary.cells import CellSummary, Metric, Setting, SettingSummary, Summary, cells_of
from ipcbench.analysis.summary.crossover import rank_of
from ipcbench.analysis.summary.curves import families, middle_of
from ipcbench.analysis.summary.figures import reader_skew, scaled
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.wording import family_words, interval_words, joined, setting_title, size_words
from ipcbench.render.charts import (
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
from ipcbench.results.model import Floor
from ipcbench.spec import is_sized_in_bytes
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_significant

_MAX_MISSING = 6


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity drawn against payload size."""

    key: str
    title: str
    reading: str
    y: Axis
    label: str
    """Stands before the value in a tooltip."""
    value: Callable[[CellSummary], Interval | None]
    """In the unit of the axis."""
    marks: Marks = "band"
    metric: Metric = "latency"
    """By whose ranks the backends are ordered."""


def _in_unit(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else scaled(interval, factor)


def _exact(value: float | None, factor: float) -> Interval | None:
    return None if value is None else Interval(value * factor, value * factor, value * factor)


def _throughput(cell: CellSummary) -> Interval | None:
    return _in_unit(cell.throughput_interval_per_s, 1e-3) or _exact(cell.throughput_per_s, 1e-3)


def _memory_share(cell: CellSummary) -> Interval | None:
    share, rate, interval = cell.memory_bandwidth_ratio, cell.throughput_per_s, cell.throughput_interval_per_s
    if share is None or not rate or interval is None:
        return _exact(share, 100.0)
    return scaled(interval, 100.0 * share / rate)


def _decode_share(cell: CellSummary) -> Interval | None:
    """Return decoding as a share of delivery plus decoding, %; the interval is that of the latency alone."""
    decode, p50 = cell.decode_p50_ns, cell.latency_p50_ns
    if decode is None or p50 is None or decode <= 0:
        return None
    low, middle, high = (100.0 * decode / (decode + latency) for latency in (p50.high, p50.estimate, p50.low))
    return Interval(low, middle, high)


def _reader_skew(cell: CellSummary) -> Interval | None:
    skew = reader_skew(cell.trials) if cell.setting.readers > 1 else None
    return None if skew is None else _exact(skew.median, 1.0)


_QUANTITIES = (
    Quantity(
        "latency",
        "One-way latency",
        "Receipt − intended send time of paced messages, median over all readers and rounds; lower is better.",
        Axis("One-way latency, p50", "µs", log=True),
        "one-way p50",
        lambda cell: _in_unit(cell.latency_p50_ns, 1e-3),
    ),
    Quantity(
        "round-trip",
        "Round trip",
        "From a send to the last reader's reply, one message at a time; lower is better.",
        Axis("Round trip, p50", "µs", log=True),
        "round trip p50",
        lambda cell: _in_unit(cell.round_trip_p50_ns, 1e-3),
        metric="round trip",
    ),
    Quantity(
        "throughput",
        "Throughput",
        "Messages per second that every reader got while the writer wrote as fast as it could; higher is better.",
        Axis("Throughput to each reader", "k messages/s", log=True),
        "throughput",
        _throughput,
        metric="throughput",
    ),
    Quantity(
        "memory-share",
        "Share of the memory-copy ceiling",
        "Payload bytes per second to one reader as a share of what one core copies in memory at that size. Above 100 % "
        "nothing is copied: readers look at the writer's memory.",
        Axis("Share of one core's memory copy", "%", log=True),
        "of a memory copy",
        _memory_share,
        metric="throughput",
    ),
    Quantity(
        "decode-share",
        "Share of deserialization",
        "Decoding one payload as a share of delivering and decoding it, medians of both. Where it is high, another "
        "transport changes little and another codec much.",
        Axis("Decoding, of latency + decoding", "%", log=False),
        "decoding is",
        _decode_share,
    ),
    Quantity(
        "reader-skew",
        "Slowest against fastest reader",
        "Median latency of a round's slowest reader over that of its fastest, median over the rounds; 1 is fair.",
        Axis("Slowest / fastest reader, p50", "×", log=True),
        "slowest / fastest",
        _reader_skew,
    ),
)


def _further_lines(quantity: Quantity, cell: CellSummary) -> Iterator[str]:
    """Yield the tooltip lines of a cell besides the quantity itself."""
    if quantity.key == "latency" and cell.latency_p99_ns is not None:
        low, high = (format_significant(ns / 1e3) for ns in (cell.latency_p99_ns.low, cell.latency_p99_ns.high))
        yield f"one-way p99: {low} to {high} µs"
    if quantity.key in {"throughput", "memory-share"} and cell.throughput_bytes_per_s is not None:
        yield f"{format_significant(cell.throughput_bytes_per_s / 1e6)} MB/s"
    if quantity.key == "decode-share" and cell.decode_p50_ns is not None and cell.latency_p50_ns is not None:
        decode, latency = (format_significant(ns / 1e3) for ns in (cell.decode_p50_ns, cell.latency_p50_ns.estimate))
        yield f"{decode} µs decoding, {latency} µs one-way"


def size_groups(summary: Summary) -> tuple[ChartGroup, ...]:
    """Return the groups of charts against payload size; a quantity that was not measured has none."""
    by_family, colors, floor = families(summary), color_numbers(summary), summary.info.floor
    groups = []
    for quantity in _QUANTITIES:
        charts = [_chart(quantity, family, colors, several=len(by_family) > 1) for family in by_family]
        if quantity.key == "throughput" and floor is not None:
            charts = [_with_ceiling(chart, family, floor) for chart, family in zip(charts, by_family, strict=True)]
        drawn = tuple(chart for chart in charts if any(series.color >= 0 for series in chart.series))
        if drawn:
            groups.append(ChartGroup(quantity.key, quantity.title, quantity.reading, drawn))
    return tuple(groups)


def color_numbers(summary: Summary) -> dict[str, int]:
    """Return backend → number in the order of the sweep, so that a backend has the same colour in every chart."""
    measured = [cell.backend for cell in cells_of(summary.settings)]
    return {name: number for number, name in enumerate(dict.fromkeys([*summary.info.planned_backends, *measured]))}


def by_rank(family: Sequence[SettingSummary], metric: Metric = "latency") -> list[str]:
    """Return the backends of a family by their ranks at its middle size, the best first; those without one last."""
    middle = middle_of(family)
    ranks = {cell.backend: rank_of(middle, cell, metric) for cell in middle.cells}
    names = [*ranks, *(cell.backend for cell in cells_of(family))]
    return sorted(dict.fromkeys(names), key=lambda name: ranks.get(name) or len(ranks) + 1)


def is_noisy(cell: CellSummary) -> bool:
    """Return whether a cell's point is drawn hollow."""
    return any(note.startswith("noisy") or " trials failed" in note for note in cell.notes)


def setting_line(setting: Setting) -> str:
    """Return a size in its own unit and in bytes, for a tooltip."""
    words, count = size_words(setting), f"{setting.payload_bytes:,} B"
    return words if words == count else f"{words} = {count}"


def gaps(cells: Sequence[CellSummary], where: str = "") -> Iterator[str]:
    """Yield a line for each cell without figures, with the reason."""
    for cell in cells:
        if cell.status != "ok":
            place = f" at {where}" if where else ""
            yield f"{shown_name(cell.backend)}{place} {cell.status}: {one_line(cell.reason)}"


def common_notes(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield which measured cells are oversubscribed."""
    measured = [cell for cell in cells if cell.status == "ok"]
    over = [cell for cell in measured if any(note.startswith("oversubscribed") for note in cell.notes)]
    if over and len(over) == len(measured):
        yield "All cells are oversubscribed: processes take turns on too few cores."
    elif over:
        yield f"Oversubscribed, with too few cores: {joined([shown_name(cell.backend) for cell in over])}."


def _chart(quantity: Quantity, family: Sequence[SettingSummary], colors: Mapping[str, int], *, several: bool) -> Chart:
    first = family[0].setting
    missing = [line for ranking in family for line in gaps(ranking.cells, size_words(ranking.setting))]
    notes = list(dict.fromkeys(note for ranking in family for note in common_notes(ranking.cells)))
    notes += missing[:_MAX_MISSING]
    if len(missing) > _MAX_MISSING:
        notes.append(f"{len(missing) - _MAX_MISSING} more cells have no figures; see the tables.")
    lines = finite_series([_series(quantity, family, name, colors[name]) for name in by_rank(family, quantity.metric)])
    if len(family) == 1:
        return _chart_of_one_size(quantity, first, lines, notes)
    words = f"{first.payload}, {family_words(first)}"
    return Chart(
        title=f"{quantity.title} by payload size",
        setting=words,
        choice=words if several else "",
        x=Axis("Encoded payload", "bytes", log=True, ticks=_size_ticks([ranking.setting for ranking in family])),
        y=quantity.y,
        series=lines,
        notes=tuple(notes),
    )


def _chart_of_one_size(quantity: Quantity, setting: Setting, lines: Sequence[Series], notes: Sequence[str]) -> Chart:
    """Return the chart with a column for each backend, since one size makes no line."""
    columns = [
        replace(line, marks="dots", points=(replace(line.points[0], x=float(number)),))
        for number, line in enumerate(lines, 1)
    ]
    title = setting_title(setting)
    ticks = tuple((float(number), line.name) for number, line in enumerate(lines, 1))
    return Chart(
        title=quantity.title,
        setting=title,
        choice=title,
        x=Axis("Backend", "by name", log=False, ticks=ticks),
        y=quantity.y,
        series=tuple(columns),
        notes=tuple(notes),
    )


def _size_ticks(settings: Sequence[Setting]) -> tuple[tuple[float, str], ...]:
    by_size = sorted(settings, key=lambda setting: setting.payload_bytes)
    return spread_ticks([(_size_x(setting), _size_text(setting)) for setting in by_size])


def _size_x(setting: Setting) -> float:
    """Return the place of a size on a log axis, where an empty payload stands at one byte."""
    return float(max(1, setting.payload_bytes))


def _size_text(setting: Setting) -> str:
    return size_words(setting) if is_sized_in_bytes(setting.payload) else f"{setting.payload_bytes:,} B"


def _series(quantity: Quantity, family: Sequence[SettingSummary], backend: str, color: int) -> Series:
    points = []
    for cell in (cell for cell in cells_of(family) if cell.backend == backend):
        value = quantity.value(cell)
        if value is not None:
            value = cell.drawn(value)
            text = f"{quantity.label}: {value_words(value, quantity.y.unit)}"
            lines = (setting_line(cell.setting), text, *_further_lines(quantity, cell), *cell.notes[:2])
            x = _size_x(cell.setting)
            points.append(Point(x, value.estimate, lines, value.low, value.high, noisy=is_noisy(cell)))
    return Series(shown_name(backend), color, quantity.marks, tuple(points))


def value_words(value: Interval, unit: str) -> str:
    """Return a figure with its interval, if it has one, and its unit."""
    if value.low == value.high:
        return f"{format_significant(value.estimate)} {unit}"
    return interval_words(value, f" {unit}")


def _with_ceiling(chart: Chart, family: Sequence[SettingSummary], floor: Floor) -> Chart:
    """Return the chart with the rate at which one core could copy the payload in memory."""
    points = []
    for setting in (ranking.setting for ranking in family):
        rate = floor.memcpy_bytes_per_s.get(str(setting.payload_bytes))
        if rate and setting.payload_bytes:
            value = rate / setting.payload_bytes / 1e3
            text = f"{format_significant(value)} k messages/s", f"{format_significant(rate / 1e6)} MB/s"
            ends = (0.6, len(chart.series) + 0.4) if len(family) == 1 else (_size_x(setting),)
            points += [Point(x, value, (setting_line(setting), *text)) for x in ends]
    ceiling = finite_series([Series("memory copy, one core", -1, "reference", tuple(points))])
    return replace(chart, series=chart.series + ceiling) if chart.series else chart
