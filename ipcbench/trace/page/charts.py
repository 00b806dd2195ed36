"""The plots of a trace: shares of stages by method, time against size, timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, shown_name, spread_ticks
from ipcbench.render.palette import PARTS_START
from ipcbench.trace.exporters.chrome import track_name
from ipcbench.trace.exporters.common import Track, at_ns
from ipcbench.trace.page.sample import MethodSample, Sample, Window, callers
from ipcbench.trace.page.words import word
from ipcbench.trace.readers.calls import FAR_SIDES, ROLES, Row
from ipcbench.trace.report.words import Language
from ipcbench.util.units import format_bytes, format_duration_ns, format_significant

_MOST_BARS = 12
_MOST_CLOUDS = 8
_MOST_TRACKS = 24
_OTHERS = -1
"""Colour number of everything without its own colour."""

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def chart_groups(sample: Sample, language: Language) -> tuple[ChartGroup, ...]:
    """Return the plots for which there is data."""
    groups = (
        _group("shares", _shares(sample, language), language),
        _group("sizes", _sizes(sample, language), language),
        _group("timeline", [_timeline(sample, window, language) for window in sample.windows], language),
    )
    return tuple(group for group in groups if group.charts)


def _group(key: str, charts: Sequence[Chart], language: Language) -> ChartGroup:
    return ChartGroup(key, word(key, language), word(f"{key} reading", language), tuple(charts))


def _name(method: MethodSample, language: Language) -> str:
    name = shown_name(method.name)
    return f"{name} {word(ROLES[method.role], language)}" if method.role in FAR_SIDES else name


def _shares(sample: Sample, language: Language) -> list[Chart]:
    split = {method.name for method in sample.methods if method.known_count}  # their time includes the server's stages
    methods = [
        method
        for method in sample.methods
        if method.sums.total_ns > 0
        and len(method.sums.stage_ns) > 1
        and not (method.role in FAR_SIDES and method.name in split)
    ]
    drawn = methods[:_MOST_BARS]
    if not drawn:
        return []
    times = [stage_times(method, language) for method in drawn]
    names = list(dict.fromkeys(name for parts in times for name in parts))
    names.append(word("unaccounted", language))
    colors = [*range(PARTS_START, PARTS_START + len(names) - 1), _OTHERS]
    series = [
        Series(name, color, "stack", tuple(_parts(drawn, times, name, language)))
        for name, color in zip(names, colors, strict=True)
    ]
    ticks = tuple((float(number), _name(method, language)) for number, method in enumerate(drawn, 1))
    hidden = len(methods) - len(drawn)
    known = sum(method.known_count for method in drawn)
    waited = sum(method.sums.timed_count for method in drawn if method.known_count)
    notes = [word("hidden methods", language, count=hidden)] if hidden else []
    notes += [word("split", language, known=f"{known:,}", count=f"{waited:,}")] if known < waited else []
    return [
        Chart(
            word("shares", language),
            _calls_words(callers(methods), language),
            "",
            Axis(word("method", language), word("most first", language), log=False, ticks=ticks),
            Axis(word("share", language), "%", log=False),
            tuple(line for line in series if line.points),
            tuple(notes),
        )
    ]


def _calls_words(methods: Sequence[MethodSample], language: Language) -> str:
    """Return how many calls there are, and how many of them a chart shows if some were only counted."""
    calls = sum(method.sums.calls_count for method in methods)
    timed = sum(method.sums.timed_count for method in methods)
    return word("setting" if timed == calls else "setting timed", language, count=f"{calls:,}", timed=f"{timed:,}")


def stage_times(method: MethodSample, language: Language) -> dict[str, float]:
    """Return stage → its time, ns, and that of the rest; a wait whose parts are known is split into them."""
    times: dict[str, float] = {}
    for name, ns in method.sums.stage_ns.items():
        if name != "wait" or method.known_wait_ns <= 0:
            times[name] = ns
            continue
        scale = ns / method.known_wait_ns
        for part, part_ns in method.parts_ns.items():
            times[word(f"wait {part}", language)] = part_ns * scale
        times[name] = max(0.0, ns - scale * sum(method.parts_ns.values()))
    times[word("unaccounted", language)] = max(0, method.sums.total_ns - sum(method.sums.stage_ns.values()))
    return times


def _parts(
    methods: Sequence[MethodSample], times: Sequence[dict[str, float]], stage: str, language: Language
) -> Iterator[Point]:
    """Yield the share of a stage in each method's time."""
    for number, (method, parts) in enumerate(zip(methods, times, strict=True), 1):
        part, whole = parts.get(stage, 0.0), sum(parts.values())
        if part <= 0:
            continue
        share = f"{100 * part / whole:.1f} %"
        each = word("mean", language, time=format_duration_ns(part / max(1, method.sums.timed_count)),
                    total=format_duration_ns(method.sums.total_ns / max(1, method.sums.timed_count)))  # fmt: skip
        yield Point(number, 100.0 * part / whole, (_name(method, language), share, each))


def _sizes(sample: Sample, language: Language) -> list[Chart]:
    series: list[Series] = []
    without = 0
    for number, method in enumerate(sample.methods):
        if method.role in FAR_SIDES and not method.sums.moved_bytes:
            continue
        calls = list(zip(method.times_ns.tolist(), method.sizes_bytes.tolist(), strict=True))
        points = tuple(
            Point(size, time / 1e6, (format_bytes(size), format_duration_ns(time)))
            for time, size in calls
            if size > 0 and time > 0
        )
        without += len(calls) - len(points) + method.unsized_count
        if points and number < _MOST_CLOUDS:
            series.append(Series(_name(method, language), number, "cloud", points))
        elif points:
            named = tuple(Point(point.x, point.y, (_name(method, language), *point.lines)) for point in points)
            _add_to_others(series, word("others", language), named)
    if not series:
        return []
    count = sum(len(cloud.points) for cloud in series)
    return [
        Chart(
            word("sizes", language),
            word("setting", language, count=f"{count:,}"),
            "",
            Axis(word("moved", language), word("bytes", language), log=True, ticks=_size_ticks(series)),
            Axis(word("time", language), "ms", log=True),
            tuple(series),
            (word("no bytes", language, count=f"{without:,}"),) if without else (),
        )
    ]


def _size_ticks(series: Sequence[Series]) -> tuple[tuple[float, str], ...]:
    """Return some powers of two between the smallest and the largest size; none if fewer than two fit."""
    low, high = (find(point.x for cloud in series for point in cloud.points) for find in (min, max))
    powers = range(0, 41, 5 if high > 2**13 * low else 2)
    ticks = [(float(2**power), format_bytes(2**power)) for power in powers if low / 1.5 <= 2**power <= high * 1.5]
    return spread_ticks(ticks) if len(ticks) > 1 else ()


def _add_to_others(series: list[Series], name: str, points: tuple[Point, ...]) -> None:
    if series and series[-1].color == _OTHERS:
        series[-1] = Series(name, _OTHERS, "cloud", (*series[-1].points, *points))
    else:
        series.append(Series(name, _OTHERS, "cloud", points))


def _timeline(sample: Sample, window: Window, language: Language) -> Chart:
    numbers = {(method.name, method.role): number for number, method in enumerate(sample.methods)}
    tracks = sorted({track for _, track in window.calls}, key=_track_order)
    places = {track: number for number, track in enumerate(tracks[:_MOST_TRACKS], 1)}
    drawn = [(row, track) for row, track in window.calls if track in places]
    begin = min(at_ns(row) for row, _ in drawn)
    axis = BusyTime.of([(at_ns(row) - begin, at_ns(row) - begin + row.total_ns) for row, _ in drawn])
    span_ns = axis.place(max(at_ns(row) + row.total_ns for row, _ in drawn) - begin)
    scale, unit = next((unit for unit in _UNITS if span_ns >= unit[0]), (1e3, "µs"))
    series: dict[tuple[str, int], list[Point]] = {}
    for row, track in drawn:
        start = (at_ns(row) - begin) / scale
        place = axis.place(at_ns(row) - begin) / scale
        point = Point(place, places[track], tuple(_said(row, start, unit)), x_high=place + row.total_ns / scale)
        series.setdefault((row.method, row.role), []).append(point)
    choice = word(window.kind, language)
    hidden = len(window.calls) - len(drawn)
    near = sum(row.role not in FAR_SIDES for row, _ in drawn) or len(drawn)
    notes = [word("hidden lines", language, count=hidden)] if hidden else []
    if axis.cut_ns:
        notes.append(word("idle", language, count=len(axis.cuts), time=format_duration_ns(axis.cut_ns)))
    return Chart(
        word("timeline", language),
        f"{choice}, {word('setting', language, count=f'{near:,}')}",
        choice,
        Axis(word("since begin, busy" if axis.cut_ns else "since begin", language), unit, log=False),
        Axis(word("line", language), word("number", language), log=False, reverse=True,
             ticks=tuple((float(place), _track_words(track)) for track, place in places.items())),
        tuple(
            Series(_name(MethodSample(*key), language), _color(numbers, key), "spans", tuple(points))
            for key, points in sorted(series.items(), key=lambda item: numbers.get(item[0], len(numbers)))
        ),
        tuple(notes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BusyTime:
    """An axis of time on which the gaps between calls are shortened, so that at most a third of it is idle."""

    cuts: tuple[tuple[int, int], ...]
    """(when a gap ends, how much of it is cut out), ns, by time."""

    @classmethod
    def of(cls, calls: Sequence[tuple[int, int]]) -> BusyTime:
        """Return the axis for calls, each (begin, end), ns, at least one."""
        gaps: list[tuple[int, int]] = []
        busy_ns, end = 0, min(begin for begin, _ in calls)
        for begin, until in sorted(calls):
            if begin > end:
                gaps.append((begin, begin - end))
            busy_ns += max(0, until - max(begin, end))
            end = max(end, until)
        most_ns = busy_ns // (2 * max(1, len(gaps)))
        return cls(tuple((at, gap - most_ns) for at, gap in gaps if gap > most_ns))

    @property
    def cut_ns(self) -> int:
        """How much is cut out in all, ns."""
        return sum(cut for _, cut in self.cuts)

    def place(self, at_ns: int) -> int:
        """Return where a moment of a call stands on the axis, ns."""
        return at_ns - sum(cut for end, cut in self.cuts if end <= at_ns)


def _color(numbers: dict[tuple[str, int], int], key: tuple[str, int]) -> int:
    """Return the same number as in the chart over sizes, where the methods beyond the first few share one."""
    number = numbers.get(key, _OTHERS)
    return number if number < _MOST_CLOUDS else _OTHERS


def _said(row: Row, start: float, unit: str) -> Iterator[str]:
    """Yield the tooltip lines of a call: its time, begin, stages, bytes, error."""
    yield format_duration_ns(row.total_ns)
    yield f"+ {format_significant(start, 4)} {unit}"
    if len(row.stages) > 1:
        yield ", ".join(f"{name} {format_duration_ns(ns)}" for name, ns in zip(row.stages, row.stage_ns, strict=True))
    if row.sent_bytes is not None and row.recv_bytes is not None:
        yield f"{format_bytes(row.sent_bytes)} → {format_bytes(row.recv_bytes)}"
    if row.failed:
        yield row.error or "failed"


def _track_order(track: Track) -> tuple[str, str, int, int, int]:
    process = track.process
    return (process.service, process.host, process.pid, process.tid, track.index)


def _track_words(track: Track) -> str:
    process = track.process
    if track.index:
        return f"· {track.index + 1}"
    return shown_name(
        f"{process.service} {process.tid}" if process.tid else f"{process.service} {track_name(process, 0)}"
    )
