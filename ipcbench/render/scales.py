"""Axis ranges, ticks and positions, the same for plots in files and in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from ipcbench.render.charts import Chart
from ipcbench.util.units import format_significant

_MAX_BAND_FACTOR = 4.0
"""An interval that reaches further than this beyond all estimates is cut off; the tables still have its figures."""
_FLAT_FACTOR = 1.6
"""A y range below this squared is widened to it, so that noise of a few percent does not look like a mountain."""
_MIN_TICKS = 3


@dataclass(frozen=True, slots=True)
class AxisRange:
    """The values that an axis shows."""

    low: float
    high: float
    log: bool

    def place(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high end."""
        if self.log:
            return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        """Return the value at a place."""
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)


def y_range(chart: Chart) -> AxisRange:
    """Return the range of the y axis: all estimates, and their intervals unless these are absurdly wide."""
    points = [point for series in chart.series for point in series.points]
    values = [point.y for point in points]
    if any(series.marks == "spans" for series in chart.series):
        return AxisRange(0.4, max(values) + 0.6, log=False)
    low, high = min(values), max(values)
    lows = [point.low for point in points if point.low is not None and point.low > 0]
    highs = [point.high for point in points if point.high is not None]
    low = max(min([low, *lows]), low / _MAX_BAND_FACTOR)
    high = min(max([high, *highs]), high * _MAX_BAND_FACTOR)
    if not chart.y.log:
        return AxisRange(0.0, 100.0 if chart.y.unit == "%" and high <= 100.0 else high * 1.08, log=False)
    if high / low < 2.0:
        middle = (low * high) ** 0.5
        low, high = middle / _FLAT_FACTOR, middle * _FLAT_FACTOR
    is_marked = any(series.marks == "points" for series in chart.series)
    margin = (high / low) ** 0.09 if is_marked else max(1.12, (high / low) ** 0.03)
    return AxisRange(low / margin, high * margin, log=True)


def x_range(chart: Chart) -> AxisRange:
    """Return the range of the x axis, with a margin."""
    points = [point for series in chart.series for point in series.points]
    low = min(min(point.x, point.x_low or point.x) for point in points)
    high = max(max(point.x, point.x_high or point.x) for point in points)
    if any(series.marks in {"dots", "stack"} for series in chart.series):
        return AxisRange(0.5, max(high, 1.0) + 0.5 if high == int(high) else high + 0.1, log=False)
    if not chart.x.log:
        margin = 0.04 * (high - low) or 0.5
        return AxisRange(low - margin, high + margin, log=False)
    margin = (high / low) ** 0.04 if high > low else 2.0
    return AxisRange(low / margin, high * margin, log=True)


def round_ticks(shown: AxisRange) -> list[float]:
    """Return ticks of a log axis: three or more round numbers if the range has that many, and not many more."""
    decades = range(floor(log10(shown.low)), ceil(log10(shown.high)) + 1)
    ticks: list[float] = []
    for steps in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [float(f"{tick:.3g}") for tick in ticks if shown.low <= tick <= shown.high]
        if len(ticks) >= _MIN_TICKS:
            break
    return ticks


def tick_text(value: float) -> str:
    """Return a round number without floating-point noise: `1,000`, `50`, `0.2`."""
    text = format_significant(value, 2)
    return text.rstrip("0").rstrip(".") if "." in text else text


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Return the places moved as little as needed to lie `gap` apart, within 0 to 1 if they fit, in the same order."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    blocks: list[list[float]] = []  # [sum of wanted starts, count]: neighbours that touch move together
    for index in order:
        blocks.append([places[index], 1.0])
        while len(blocks) > 1 and _end(blocks[-2], gap) > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total - count * blocks[-1][1] * gap
            blocks[-1][1] += count
    moved = [block[0] / block[1] + step * gap for block in blocks for step in range(int(block[1]))]
    result = [0.0] * len(places)
    for step, (index, place) in enumerate(zip(order, moved, strict=True)):
        result[index] = max(min(place, 1.0 - (len(order) - 1 - step) * gap), step * gap)
    return result


def _end(block: Sequence[float], gap: float) -> float:
    return block[0] / block[1] + block[1] * gap
