"""One chart drawn into one pair of matplotlib axes: scales, bands, markers, labels at the lines' ends."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipcbench.render.charts import Axis, Chart, Point, Series
from ipcbench.render.palette import mark
from ipcbench.render.scales import Span, round_ticks, spread_out, tick_text, x_span, y_span

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
_MOST_LETTERS = 60
"""Of names below an axis; more are turned."""
_TICK_LETTERS = 18
_LABEL_GAP = 0.062
"""Between two labels at the lines' ends, as a share of the axis."""


def wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` characters."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


def shortened(name: str, length: int) -> str:
    """Return a name of at most that many characters; of a long one, the end tells more."""
    return name if len(name) <= length else "…" + name[1 - length :]


def turned_names(chart: Chart) -> bool:
    """Return whether names below the axis are turned, for they do not fit side by side."""
    dots = any(one.marks == "dots" for one in chart.series)
    return dots and sum(min(len(text), _TICK_LETTERS) for _, text in chart.x.ticks) > _MOST_LETTERS


def draw_panel(axes: Axes, chart: Chart, *, titled: bool) -> None:
    """Draw a chart.

    Args:
        axes: empty.
        chart: with at least one point.
        titled: whether the setting stands above it, as in a figure of several.
    """
    spans = x_span(chart), y_span(chart)
    _scale(axes, chart, *spans)
    for one in chart.series:
        _draw_series(axes, one, *spans)
    _label(axes, chart, *spans)
    if titled:
        axes.set_title("\n".join(wrapped(chart.choice or chart.setting, 58)[:2]), loc="left", fontsize=9.5, color=INK)


def _scale(axes: Axes, chart: Chart, x: Span, y: Span) -> None:
    from matplotlib.ticker import NullLocator

    for axis, span, scale, limits, ruler in (
        (chart.x, x, axes.set_xscale, axes.set_xlim, axes.xaxis),
        (chart.y, y, axes.set_yscale, axes.set_ylim, axes.yaxis),
    ):
        scale("log" if span.log else "linear")
        limits((span.high, span.low) if axis.reverse else (span.low, span.high))
        ticks = _ticks(axis, span)
        if ticks is not None:
            ruler.set_ticks([value for value, _ in ticks], [text for _, text in ticks])
        if span.log:
            ruler.set_minor_locator(NullLocator())
    if any(one.marks == "dots" for one in chart.series):
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


def _ticks(axis: Axis, span: Span) -> list[tuple[float, str]] | None:
    if axis.ticks:
        return [tick for tick in axis.ticks if span.low <= tick[0] <= span.high]
    if not span.log:
        return None
    return [(value, tick_text(value)) for value in round_ticks(span)]


def _draw_series(axes: Axes, one: Series, x: Span, y: Span) -> None:
    style = mark(one.color)
    xs, ys = [point.x for point in one.points], [point.y for point in one.points]
    if one.marks == "reference":
        axes.plot(xs, ys, color=style.light, linestyle="--", linewidth=1.3, zorder=1.5)
        return
    if one.marks not in {"points", "dots"}:
        axes.plot(xs, ys, color=style.light, linestyle=_DASHES[style.dash], linewidth=2.0, zorder=3)
    if one.marks == "line":
        return
    if one.marks == "band":
        _draw_band(axes, one, y)
    for point in one.points:
        _draw_interval(axes, point, style.light, alone=len(one.points) == 1)
        if point.ring:
            axes.plot([point.x], [point.y], marker="o", markersize=17, color=MUTED, markerfacecolor="none", zorder=3.5)
        face = "white" if point.noisy else style.light
        size = 6.5 if one.marks == "band" else 9.0
        axes.plot(
            [point.x],
            [point.y],
            marker=_MARKERS[style.marker],
            markersize=size,
            color=style.light,
            markerfacecolor=face,
            markeredgewidth=1.6,
            zorder=4,
        )


def _draw_band(axes: Axes, one: Series, y: Span) -> None:
    bounded = [point for point in one.points if point.low is not None and point.high is not None]
    if len(bounded) < 2:
        return
    lows = [max(point.low or point.y, y.low) for point in bounded]
    highs = [min(point.high or point.y, y.high) for point in bounded]
    xs = [point.x for point in bounded]
    axes.fill_between(xs, lows, highs, color=mark(one.color).light, alpha=0.13, linewidth=0, zorder=2)


def _draw_interval(axes: Axes, point: Point, color: str, *, alone: bool) -> None:
    if alone and point.low is not None and point.high is not None and point.low != point.high:
        axes.plot([point.x, point.x], [point.low, point.high], color=color, linewidth=1.6, alpha=0.6, zorder=2.5)
    if point.x_low is not None and point.x_high is not None:
        axes.plot([point.x_low, point.x_high], [point.y, point.y], color=color, linewidth=1.6, alpha=0.6, zorder=2.5)


def _label(axes: Axes, chart: Chart, x: Span, y: Span) -> None:
    """Write each line's name at its end, moved apart where they would meet; names of points stand beside them."""
    ended = [one for one in chart.series if one.marks not in {"points", "dots"} and not _is_front(chart, one)]
    places = [y.place(min(max(one.points[-1].y, y.low), y.high)) for one in ended]
    ends = [x.place(one.points[-1].x) for one in ended]
    moved = spread_out(places, _LABEL_GAP)
    for one, place, end, near in zip(ended, moved, ends, places, strict=True):
        style: dict[str, Any] = {"fontsize": 9, "color": mark(one.color).light, "va": "center", "clip_on": False}
        weight = "normal" if one.marks == "reference" else "bold"
        at = 1 - end if chart.x.reverse else end
        text = "\n".join(wrapped(one.name, 13)) if one.marks == "reference" else shortened(one.name, 15)
        axes.text(1.025, place, text, transform=axes.transAxes, fontweight=weight, **style)
        axes.plot([at + 0.008, 1.018], [near, place], transform=axes.transAxes, color=style["color"], linewidth=0.7,
                  alpha=0.55, clip_on=False)  # fmt: skip
    _label_points(axes, [one for one in chart.series if one.marks == "points"], x, y)


def _is_front(chart: Chart, one: Series) -> bool:
    return one.marks == "reference" and any(other.marks == "points" for other in chart.series)


_CORNERS = (
    (8, 6, "left"),
    (8, -13, "left"),
    (-8, 6, "right"),
    (-8, -13, "right"),
    (0, 10, "center"),
    (0, -17, "center"),
)
"""Where a name may stand beside its point: offset right and up in points, and how it is aligned."""


def _label_points(axes: Axes, series: Sequence[Series], x: Span, y: Span) -> None:
    """Write names beside points, each in the first corner that touches least of what is there already."""
    box = axes.get_window_extent()
    scale = axes.figure.dpi / 72.0
    taken: list[Box] = []
    for one in series:
        left, low = x.place(one.points[0].x) * box.width, y.place(one.points[0].y) * box.height
        taken.append(Box(left - 6 * scale, low - 6 * scale, left + 6 * scale, low + 6 * scale))
    inside = Box(0.0, 0.0, box.width, box.height)
    for one in series:
        point = one.points[0]
        middle = x.place(point.x) * box.width, y.place(point.y) * box.height
        boxes = [_name_box(one.name, middle, corner, scale) for corner in _CORNERS]
        costs = [sum(each.overlap(other) for other in taken) + each.area - each.overlap(inside) for each in boxes]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        right, up, align = _CORNERS[best]
        axes.annotate(
            one.name,
            (point.x, point.y),
            xytext=(right, up),
            textcoords="offset points",
            ha=align,
            fontsize=9,
            fontweight="bold",
            color=mark(one.color).light,
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
