"""Charts as JSON for the script of the report page: series, ranges, ticks, colours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ipcbench.render.charts import Axis, Chart, ChartGroup, Series
from ipcbench.render.palette import mark
from ipcbench.render.scales import Span, round_ticks, tick_text, x_span, y_span


def groups_json(groups: Sequence[ChartGroup]) -> str:
    """Return the charts as JSON without `<`, `>` and `&`, so that nothing in it can end the script that holds it."""
    values = [{"key": one.key, "charts": [_chart(chart) for chart in one.charts]} for one in groups]
    text = json.dumps(values, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "summary": chart.summary,
        "choice": chart.choice,
        "common": chart.common,
        "notes": chart.notes,
        "x": _axis(chart.x, x_span(chart)),
        "y": _axis(chart.y, y_span(chart)),
        "series": [_series(one) for one in chart.series],
    }


def _axis(axis: Axis, span: Span) -> dict[str, Any]:
    ticks = axis.ticks or (tuple((value, tick_text(value)) for value in round_ticks(span)) if axis.log else ())
    return {
        "title": axis.title,
        "log": axis.log,
        "reverse": axis.reverse,
        "fixed": bool(axis.ticks),
        "range": [_rounded(span.low), _rounded(span.high)],
        "ticks": [value for value, _ in ticks],
        "texts": [text for _, text in ticks],
    }


def _series(one: Series) -> dict[str, Any]:
    style = mark(one.color)
    intervals = {
        name: [_rounded(getattr(point, name)) for point in one.points]
        for name in ("low", "high", "x_low", "x_high")
        if any(getattr(point, name) is not None for point in one.points)
    }
    return {
        "name": one.name,
        "marks": one.marks,
        "light": style.light,
        "dark": style.dark,
        "marker": style.marker,
        "dash": style.dash,
        "x": [_rounded(point.x) for point in one.points],
        "y": [_rounded(point.y) for point in one.points],
        "lines": [point.lines for point in one.points],
        "noisy": [int(point.noisy) for point in one.points],
        "ring": [int(point.ring) for point in one.points],
        **intervals,
    }


def _rounded(value: float | None) -> float | None:
    """Return a number with six digits: more than a screen shows; the figures in words are made before this."""
    return None if value is None else float(f"{value:.6g}")
