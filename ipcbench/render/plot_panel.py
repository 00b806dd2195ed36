"""Draw one chart into matplotlib axes: scales, bands, markers, and a label at the end of each line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipcbench.render.charts import Axis, Chart, Point, Series
from ipcbench.render.palette import series_style
from ipcbench.render.scales import AxisRange, round_ticks, spread_out, tick_text, x_range, y_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, _GRID = "#16202c", "#5b6673", "#e4e8ee"
_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "pentagon": "p",
    "star": "*",
}
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_MAX_ROW_LETTERS = 60
"""Names below an axis that have more letters in all are turned."""
_TICK_LETTERS = 18
_ASIDE = 0.9
"""By what the intervals of neighbouring lines are set apart on a log axis."""
_LABEL_GAP = 0.062
"""Least distance of two line labels, as a share of the axis."""
_EDGE_WIDTH = 1.6
"""Of markers and intervals, in points."""


def wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` characters."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


def shortened(name: str, length: int) -> str:
    """Return a name of at most `length` characters; a long name keeps its end, which is more telling."""
    return name if len(name) <= length else "…" + name[1 - length :]


def turned_names(chart: Chart) -> bool:
    """Return whether the names below the axis are turned because they do not fit side by side."""
    dots = any(series.marks == "dots" for series in chart.series)
    return dots and sum(min(len(text), _TICK_LETTERS) for _, text in chart.x.ticks) > _MAX_ROW_LETTERS


def draw_panel(axes: Axes, chart: Chart, *, titled: bool) -> None:
    """Draw a chart.

    Args:
        axes: empty axes.
        chart: a chart with at least one point.
        titled: write the setting above it, as a figure with several panels needs.
    """
    x, y = x_range(chart), y_range(chart)
    _scale(axes, chart, x, y)
    for series in chart.series:
        _draw_series(axes, series, y)
    _draw_tails(axes, [series for series in chart.series if series.marks == "line"])
    _label(axes, chart, x, y)
    if titled:
        axes.set_title("\n".join(wrapped(chart.choice or chart.setting, 58)[:2]), loc="left", fontsize=9.5, color=INK)


def _scale(axes: Axes, chart: Chart, x: AxisRange, y: AxisRange) -> None:
    from matplotlib.ticker import NullLocator

    for axis, shown, scale, limits, ruler in (
        (chart.x, x, axes.set_xscale, axes.set_xlim, axes.xaxis),
        (chart.y, y, axes.set_yscale, axes.set_ylim, axes.yaxis),
    ):
        scale("log" if shown.log else "linear")
        limits((shown.high, shown.low) if axis.reverse else (shown.low, shown.high))
        ticks = _ticks(axis, shown)
        if ticks is not None:
            ruler.set_ticks([value for value, _ in ticks], [text for _, text in ticks])
        if shown.log:
            ruler.set_minor_locator(NullLocator())
    if any(series.marks == "dots" for series in chart.series):
        texts = [shortened(text, _TICK_LETTERS) for _, text in chart.x.ticks]
        turned = turned_names(chart)
        axes.set_xticks([value for value, _ in chart.x.ticks], texts, rotation=28 if turned else 0,
                        ha="right" if turned else "center")  # fmt: skip
    axes.set_xlabel(chart.x.title, color=MUTED)
    axes.set_ylabel(chart.y.title, color=MUTED)
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=MUTED, labelsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#aab4c0")


def _ticks(axis: Axis, shown: AxisRange) -> list[tuple[float, str]] | None:
    if axis.ticks:
        return [tick for tick in axis.ticks if shown.low <= tick[0] <= shown.high]
    if not shown.log:
        return None
    return [(value, tick_text(value)) for value in round_ticks(shown)]


def _draw_series(axes: Axes, series: Series, y: AxisRange) -> None:
    style = series_style(series.color)
    xs, ys = [point.x for point in series.points], [point.y for point in series.points]
    if series.marks == "reference":
        axes.plot(xs, ys, color=style.light, linestyle="--", linewidth=1.3, zorder=1.5)
        return
    if series.marks not in {"points", "dots"}:
        axes.plot(xs, ys, color=style.light, linestyle=_DASHES[style.dash], linewidth=2.0, zorder=3)
    if series.marks == "line":
        return
    if series.marks == "band":
        _draw_band(axes, series, y)
    for point in series.points:
        _draw_interval(axes, point, style.light, alone=len(series.points) == 1)
        if point.ring:
            axes.plot([point.x], [point.y], marker="o", markersize=17, color=MUTED, markerfacecolor="none", zorder=3.5)
        face = "white" if point.noisy else style.light
        size = 6.5 if series.marks == "band" else 9.0
        axes.plot(
            [point.x],
            [point.y],
            marker=_MARKERS[style.marker],
            markersize=size,
            color=style.light,
            markerfacecolor=face,
            markeredgewidth=_EDGE_WIDTH,
            zorder=4,
        )


def _draw_tails(axes: Axes, lines: Sequence[Series]) -> None:
    """Draw the intervals of points of lines, side by side, since all lines have theirs at the same x."""
    for number, series in enumerate(lines):
        aside = _ASIDE ** (number - (len(lines) - 1) / 2)
        for point in series.points:
            _draw_interval(axes, replace(point, x=point.x * aside), series_style(series.color).light, alone=True)


def _draw_band(axes: Axes, series: Series, y: AxisRange) -> None:
    bounded = [point for point in series.points if point.low is not None and point.high is not None]
    if len(bounded) < 2:
        return
    lows = [max(point.low or point.y, y.low) for point in bounded]
    highs = [min(point.high or point.y, y.high) for point in bounded]
    xs = [point.x for point in bounded]
    axes.fill_between(xs, lows, highs, color=series_style(series.color).light, alpha=0.13, linewidth=0, zorder=2)


def _draw_interval(axes: Axes, point: Point, color: str, *, alone: bool) -> None:
    look: dict[str, Any] = {"color": color, "linewidth": _EDGE_WIDTH, "alpha": 0.6, "zorder": 2.5}
    if alone and point.low is not None and point.high is not None and point.low != point.high:
        axes.plot([point.x, point.x], [point.low, point.high], **look)
    if point.x_low is not None and point.x_high is not None:
        axes.plot([point.x_low, point.x_high], [point.y, point.y], **look)


def _label(axes: Axes, chart: Chart, x: AxisRange, y: AxisRange) -> None:
    """Write each line's name at its end, moved apart where names would meet, and names of points beside them."""
    ended = [line for line in chart.series if line.marks not in {"points", "dots"} and not _is_front(chart, line)]
    places = [y.place(min(max(line.points[-1].y, y.low), y.high)) for line in ended]
    ends = [x.place(line.points[-1].x) for line in ended]
    moved = spread_out(places, _LABEL_GAP)
    for line, place, end, near in zip(ended, moved, ends, places, strict=True):
        color, dashed = series_style(line.color).light, line.marks == "reference"
        style: dict[str, Any] = {"fontsize": 9, "color": color, "va": "center", "clip_on": False}
        weight = "normal" if dashed else "bold"
        at = 1 - end if chart.x.reverse else end
        text = "\n".join(wrapped(line.name, 13)) if dashed else shortened(line.name, 15)
        axes.text(1.025, place, text, transform=axes.transAxes, fontweight=weight, **style)
        axes.plot([at + 0.008, 1.018], [near, place], transform=axes.transAxes, color=color, linewidth=0.7,
                  alpha=0.55, clip_on=False)  # fmt: skip
    _label_points(axes, [series for series in chart.series if series.marks == "points"], x, y)


def _is_front(chart: Chart, series: Series) -> bool:
    return series.marks == "reference" and any(other.marks == "points" for other in chart.series)


_CORNERS = (
    (8, 6, "left"),
    (8, -13, "left"),
    (-8, 6, "right"),
    (-8, -13, "right"),
    (0, 10, "center"),
    (0, -17, "center"),
)
"""Where a name may stand beside its point: offset right and up in points, and its alignment."""


def _label_points(axes: Axes, series: Sequence[Series], x: AxisRange, y: AxisRange) -> None:
    """Write names beside points, each in the first corner that overlaps least with what is there already."""
    box = axes.get_window_extent()
    scale = axes.figure.dpi / 72.0
    points = [line.points[0] for line in series]
    middles = [(x.place(point.x) * box.width, y.place(point.y) * box.height) for point in points]
    half = 6 * scale
    taken = [Box(left - half, low - half, left + half, low + half) for left, low in middles]
    inside = Box(0.0, 0.0, box.width, box.height)
    for line, point, middle in zip(series, points, middles, strict=True):
        boxes = [_name_box(line.name, middle, corner, scale) for corner in _CORNERS]
        costs = [sum(each.overlap(other) for other in taken) + each.area - each.overlap(inside) for each in boxes]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        right, up, align = _CORNERS[best]
        axes.annotate(
            line.name,
            (point.x, point.y),
            xytext=(right, up),
            textcoords="offset points",
            ha=align,
            fontsize=9,
            fontweight="bold",
            color=series_style(line.color).light,
            zorder=5,
        )


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels."""

    left: float
    low: float
    right: float
    high: float

    @property
    def area(self) -> float:
        """Return its area."""
        return (self.right - self.left) * (self.high - self.low)

    def overlap(self, other: Box) -> float:
        """Return the area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.high, other.high) - max(self.low, other.low)
        return max(0.0, width) * max(0.0, height)


def _name_box(name: str, middle: tuple[float, float], corner: tuple[int, int, str], scale: float) -> Box:
    width, height = 6.1 * len(name) * scale, 9.0 * scale  # of bold letters of 9 points
    right, up, align = corner
    left = middle[0] + right * scale - {"left": 0.0, "right": width, "center": width / 2}[align]
    low = middle[1] + up * scale
    return Box(left, low, left + width, low + height)
