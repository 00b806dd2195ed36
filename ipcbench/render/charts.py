"""The chart model: axes with units, series of points with their intervals, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal

from ipcbench.util.units import format_significant

Marks = Literal["band", "line", "points", "dots", "reference", "stack", "cloud", "spans"]
"""`band`: line, markers, and the interval as a band. `line`: line only. `points`: markers with names beside them.
`dots`: one marker above its name on the axis. `reference`: a dashed line that belongs to no backend. In pages only:
`stack`: bars above names on the axis, stacked over the series. `cloud`: many small markers. `spans`: bars from x to
`x_high`."""

MAX_TICKS = 6
MAX_NAME = 28


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart."""

    label: str
    unit: str
    """Never empty; a ratio is `×`, a share is `%`."""
    log: bool
    ticks: tuple[tuple[float, str], ...] = ()
    """(value, text); if empty, the renderer chooses round numbers."""
    reverse: bool = False
    """Larger values to the left."""

    @property
    def title(self) -> str:
        """Return the label with its unit."""
        return f"{self.label}, {self.unit}"


@dataclass(frozen=True, slots=True)
class Point:
    """One finite value and its tooltip."""

    x: float
    y: float
    lines: tuple[str, ...]
    """Tooltip: setting, value with unit and interval, notes."""
    low: float | None = None
    """Lower end of the 95 % interval of y."""
    high: float | None = None
    x_low: float | None = None
    """Lower end of the 95 % interval of x."""
    x_high: float | None = None
    noisy: bool = False
    """Drawn hollow: a trial was noisy or failed."""
    ring: bool = False
    """Drawn with a ring: no other point is lower in both x and y."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points with one colour and one entry in the legend."""

    name: str
    color: int
    """Number of the backend in the run, the same in every chart; negative if the series is not a backend."""
    marks: Marks
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot."""

    title: str
    setting: str
    """What all points have in common."""
    choice: str
    """What distinguishes this chart from the others of its group; empty if there are none."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()
    """What is missing and why, and facts about all points."""

    @property
    def common(self) -> str:
        """Return the part of `setting` that `choice` does not repeat."""
        return self.setting.removeprefix(self.choice).removeprefix(", ")

    @property
    def summary(self) -> str:
        """Return a text alternative to the plot."""
        return f"{self.title}: {self.y.title}, against {self.x.title}. {self.setting}. " + "; ".join(
            f"{series.name} {_span([point.y for point in series.points])} {self.y.unit}" for series in self.series
        )


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """Charts that answer one question, each for a different setting."""

    key: str
    """Base name of its files: lower-case letters, digits and hyphens."""
    title: str
    reading: str
    """How to read the charts, in a sentence or two."""
    charts: tuple[Chart, ...]


def _span(values: Sequence[float]) -> str:
    low, high = format_significant(min(values)), format_significant(max(values))
    return low if low == high else f"{low} to {high}"


def finite_series(series: Sequence[Series]) -> tuple[Series, ...]:
    """Return the series without points that a log axis cannot show, and without series that then have none."""
    kept = (replace(line, points=tuple(filter(_is_drawable, line.points))) for line in series)
    return tuple(line for line in kept if line.points)


def _is_drawable(point: Point) -> bool:
    numbers = (point.x, point.y, point.low, point.high, point.x_low, point.x_high)
    return all(isfinite(number) for number in numbers if number is not None) and point.x > 0 and point.y > 0


def shown_name(name: str) -> str:
    """Return a backend's name fit for a plot: one line; a long name keeps its end, which is more telling."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split()) or "?"
    return plain if len(plain) <= MAX_NAME else "…" + plain[1 - MAX_NAME :]


def spread_ticks(ticks: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """Return at most `MAX_TICKS` of the ticks, evenly chosen, including the first and the last."""
    if len(ticks) <= MAX_TICKS:
        return tuple(ticks)
    step = (len(ticks) - 1) / (MAX_TICKS - 1)
    return tuple(ticks[round(index * step)] for index in range(MAX_TICKS))
