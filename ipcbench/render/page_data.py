"""Charts as JSON for the script of a page: series, ranges, ticks, colours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ipcbench.render.charts import Axis, Chart, ChartGroup, Series
from ipcbench.render.palette import series_style
from ipcbench.render.scales import AxisRange, round_ticks, tick_text, x_range, y_range


def groups_json(groups: Sequence[ChartGroup]) -> str:
    """Return the charts as JSON without `<`, `>` and `&`, so that no value can end the script element around it."""
    values = [{"key": group.key, "charts": [_chart(chart) for chart in group.charts]} for group in groups]
    text = json.dumps(values, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "summary": chart.summary,
        "choice": chart.choice,
        "common": chart.common,
        "notes": chart.notes,
        "x": _axis(chart.x, x_range(chart)),
        "y": _axis(chart.y, y_range(chart)),
        "series": [_series(series) for series in chart.series],
    }


def _axis(axis: Axis, shown: AxisRange) -> dict[str, Any]:
    ticks = axis.ticks or (tuple((value, tick_text(value)) for value in round_ticks(shown)) if axis.log else ())
    return {
        "title": axis.title,
        "log": axis.log,
        "reverse": axis.reverse,
        "fixed": bool(axis.ticks),
        "range": [_rounded(shown.low), _rounded(shown.high)],
        "ticks": [value for value, _ in ticks],
        "texts": [text for _, text in ticks],
    }


def _series(series: Series) -> dict[str, Any]:
    style = series_style(series.color)
    intervals = {
        name: [_rounded(getattr(point, name)) for point in series.points]
        for name in ("low", "high", "x_low", "x_high")
        if any(getattr(point, name) is not None for point in series.points)
    }
    return {
        "name": series.name,
        "marks": series.marks,
        "light": style.light,
        "dark": style.dark,
        "marker": style.marker,
        "dash": style.dash,
        "x": [_rounded(point.x) for point in series.points],
        "y": [_rounded(point.y) for point in series.points],
        "lines": [point.lines for point in series.points],
        "noisy": [int(point.noisy) for point in series.points],
        "ring": [int(point.ring) for point in series.points],
        **intervals,
    }


def _rounded(value: float | None) -> float | None:
    """Return a number with six digits, more than a screen shows; tooltips are made from the exact value."""
    return None if value is None else float(f"{value:.6g}")
