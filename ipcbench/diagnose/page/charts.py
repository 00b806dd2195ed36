"""The plots of a diagnosis: the parts of each method's time, and the floors by size."""

from __future__ import annotations

from collections.abc import Sequence

from ipcbench.diagnose.attribution import PARTS, Attribution
from ipcbench.diagnose.diagnosis import Diagnosis
from ipcbench.diagnose.render import percent, quicker
from ipcbench.diagnose.words import page_word, word
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series, finite_series, shown_name, spread_ticks
from ipcbench.render.palette import PARTS_START
from ipcbench.trace.page.words import word as trace_word
from ipcbench.trace.report.words import Language
from ipcbench.util.units import format_bytes, format_duration_ns

_MOST_BARS = 12
_NO_COLOR = -1
"""Of what is unknown."""


def parts_chart(diagnosis: Diagnosis, language: Language) -> ChartGroup | None:
    """Return the shares of the parts in the time of all calls and of each method; None if no times are known."""
    timed = [each for each in diagnosis.attributions if each.total_ns > 0]
    drawn = timed[: 1 if len(timed) == 2 else _MOST_BARS]  # of one method the bar would be that of all
    if not drawn:
        return None
    names = [shown_name(each.name) if each.name else word("all", language) for each in drawn]
    series = tuple(
        Series(
            word(part, language),
            _NO_COLOR if part == "unknown" else PARTS_START + number,
            "stack",
            tuple(
                _share(place, each, part, name, language)
                for place, (name, each) in enumerate(zip(names, drawn, strict=True), 1)
                if each.parts_ns[part] > 0
            ),
        )
        for number, part in enumerate(PARTS)
    )
    hidden = max(0, len(timed) - _MOST_BARS)
    below = [trace_word("hidden methods", language, count=hidden)] if hidden else []
    below += [page_word("parts legend", language), *quicker(diagnosis, language)]
    title = page_word("parts", language)
    chart = Chart(
        title,
        page_word("badge calls", language, count=f"{diagnosis.traffic.calls_count:,}"),
        "",
        Axis(trace_word("method", language), trace_word("most first", language), log=False,
             ticks=tuple((float(place), name) for place, name in enumerate(names, 1))),
        Axis(trace_word("share", language), "%", log=False),
        tuple(each for each in series if each.points),
        tuple(below),
    )  # fmt: skip
    return ChartGroup("parts", title, page_word("parts reading", language), (chart,))


def _share(place: int, each: Attribution, part: str, name: str, language: Language) -> Point:
    mean = trace_word("mean", language, time=format_duration_ns(each.parts_ns[part] / each.calls_count),
                      total=format_duration_ns(each.total_ns / each.calls_count))  # fmt: skip
    return Point(float(place), 100 * each.share(part), (name, percent(each.share(part)), mean))


def floors_chart(diagnosis: Diagnosis, language: Language) -> ChartGroup | None:
    """Return the one-way time by size over each transport; None without two sizes."""
    series = finite_series(
        [
            Series(
                floor.backend,
                number,
                "band",
                tuple(
                    Point(float(size), ns / 1e3, (format_bytes(size), format_duration_ns(ns)))
                    for size, ns in zip(floor.table.sizes_bytes, floor.table.one_way_ns, strict=True)
                ),
            )
            for number, floor in enumerate(diagnosis.floors)
        ]
    )
    sizes = sorted({int(point.x) for line in series for point in line.points})
    if len(sizes) < 2:
        return None
    title = page_word("floors title", language)
    chart = Chart(
        title,
        page_word("here", language),
        "",
        Axis(page_word("message", language), "B", log=True, ticks=_size_ticks(sizes)),
        Axis(page_word("one way", language), "µs", log=True),
        series,
    )
    return ChartGroup("floors", title, page_word("floors reading", language), (chart,))


def _size_ticks(sizes: Sequence[int]) -> tuple[tuple[float, str], ...]:
    """Return the sizes that are powers of two, which have short names; all if these are too few."""
    round_sizes = [size for size in sizes if size & (size - 1) == 0]
    chosen = round_sizes if len(round_sizes) > 1 else sizes
    return spread_ticks([(float(size), format_bytes(size)) for size in chosen])
