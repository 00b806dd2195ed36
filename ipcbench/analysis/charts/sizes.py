"""Charts against the payload's size: latency, throughput, share of memory bandwidth, share of decoding, reader skew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import groupby

from ipcbench.analysis.charts.quantities import QUANTITIES, Quantity, further_lines, skew_quantity
from ipcbench.analysis.summary.cells import CellSummary, Setting, SettingSummary, Summary
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.wording import family_words, joined, setting_title, size_words
from ipcbench.render.charts import (
    Axis,
    Chart,
    ChartGroup,
    Point,
    Series,
    finite_series,
    shown_name,
    spread_ticks,
)
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_significant

_MAX_MISSING = 6


def size_groups(summary: Summary, skew_ratios: Mapping[tuple[Setting, str], float]) -> tuple[ChartGroup, ...]:
    """Return the groups of charts against the payload's size; a quantity that was not measured has none.

    Args:
        summary: of the run.
        skew_ratios: (setting, backend) → median latency of the slowest reader over that of the fastest.
    """
    families = [list(group) for _, group in groupby(summary.settings, key=lambda one: family_of(one.setting))]
    colors = color_numbers(summary)
    found = []
    for quantity in (*QUANTITIES, skew_quantity(skew_ratios)):
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
    """Yield which measured cells are oversubscribed."""
    measured = [cell for cell in cells if cell.status == "ok"]
    over = [cell for cell in measured if any(note.startswith("oversubscribed") for note in cell.notes)]
    if over and len(over) == len(measured):
        yield "All cells are oversubscribed: processes take turns on too few cores."
    elif over:
        yield f"Oversubscribed, with too few cores: {joined([shown_name(cell.backend) for cell in over])}."


def _chart(quantity: Quantity, family: Sequence[SettingSummary], colors: Mapping[str, int], *, several: bool) -> Chart:
    first = family[0].setting
    backends = sorted({cell.backend for one in family for cell in one.cells}, key=lambda name: colors[name])
    missing = [line for one in family for line in gaps(one.cells, size_words(one.setting))]
    notes = [*dict.fromkeys(note for one in family for note in common_notes(one.cells)), *missing[:_MAX_MISSING]]
    if len(missing) > _MAX_MISSING:
        notes.append(f"{len(missing) - _MAX_MISSING} more cells have no figures; see the tables.")
    if len(family) == 1:
        return _chart_of_one_size(quantity, family[0], backends, colors, notes)
    return Chart(
        title=f"{quantity.title} by payload size",
        setting=f"{first.payload}, {family_words(first)}",
        choice=f"{first.payload}, {family_words(first)}" if several else "",
        x=Axis("Encoded payload", "bytes", log=True, ticks=_size_ticks([one.setting for one in family])),
        y=quantity.y,
        series=finite_series([_series(quantity, family, name, colors[name]) for name in backends]),
        notes=tuple(notes),
    )


def _chart_of_one_size(
    quantity: Quantity, one: SettingSummary, backends: Sequence[str], colors: Mapping[str, int], notes: Sequence[str]
) -> Chart:
    """Return the chart with a column for each backend, since there is no line through one size."""
    lines = finite_series([_series(quantity, (one,), name, colors[name]) for name in backends])
    columns = [
        replace(line, marks="dots", points=(replace(line.points[0], x=float(number)),))
        for number, line in enumerate(lines, 1)
    ]
    title = setting_title(one.setting)
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
    return spread_ticks(
        [(_size_x(one), _size_text(one)) for one in sorted(settings, key=lambda one: one.payload_bytes)]
    )


def _size_x(setting: Setting) -> float:
    """Return the place of a size on a log axis, on which an empty payload stands at one byte."""
    return float(max(1, setting.payload_bytes))


def _size_text(setting: Setting) -> str:
    return f"{setting.payload_bytes:,} B" if setting.payload == "dict" else size_words(setting)


def _series(quantity: Quantity, family: Sequence[SettingSummary], backend: str, color: int) -> Series:
    points = []
    for one in family:
        for cell in one.cells:
            value = quantity.value(cell) if cell.backend == backend else None
            if value is not None:
                said = f"{quantity.what}: {with_interval(value, quantity.y.unit)}"
                lines = (setting_line(one.setting), said, *further_lines(quantity, cell), *cell.notes[:2])
                x = _size_x(one.setting)
                points.append(Point(x, value.estimate, lines, value.low, value.high, noisy=is_noisy(cell)))
    return Series(shown_name(backend), color, quantity.marks, tuple(points))


def _with_ceiling(chart: Chart, family: Sequence[SettingSummary], summary: Summary) -> Chart:
    """Return the chart with the rate at which one core could copy the payload in memory."""
    floor = summary.info.floor
    points = []
    for setting in (one.setting for one in family):
        rate = floor.memcpy_bytes_per_s.get(str(setting.payload_bytes)) if floor is not None else None
        if rate and setting.payload_bytes:
            value = rate / setting.payload_bytes / 1e3
            said = f"{format_significant(value)} k messages/s", f"{format_significant(rate / 1e6)} MB/s"
            ends = (0.6, len(chart.series) + 0.4) if len(family) == 1 else (_size_x(setting),)
            points += [Point(x, value, (setting_line(setting), *said)) for x in ends]
    ceiling = finite_series([Series("memory copy, one core", -1, "reference", tuple(points))])
    return replace(chart, series=chart.series + ceiling) if chart.series else chart
