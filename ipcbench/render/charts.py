"""What a plot is made of: axes with units, series of points with their intervals, words beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from ipcbench.util.units import format_significant

Marks = Literal["band", "line", "points", "dots", "reference", "stack", "cloud", "spans"]
"""`band`: line, markers and the interval as a band. `line`: a line alone. `points`: markers with names beside
them. `dots`: one marker above its name on the axis. `reference`: a dashed line of no backend. Only in pages: `stack`:
bars above names on the axis, those of several series on top of each other. `cloud`: many small markers. `spans`: bars
from x to `x_high`."""

MAX_TICKS = 6
MAX_NAME = 28


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis."""

    label: str
    unit: str
    """Never empty; a ratio is `×`, a share is `%`."""
    log: bool
    ticks: tuple[tuple[float, str], ...] = ()
    """(value, text); empty where the drawing may choose round numbers."""
    reverse: bool = False
    """Larger values to the left."""

    @property
    def title(self) -> str:
        """Return label and unit as they stand beside the axis."""
        return f"{self.label}, {self.unit}"


@dataclass(frozen=True, slots=True)
class Point:
    """One value, finite, with what is said of it when it is pointed at."""

    x: float
    y: float
    lines: tuple[str, ...]
    """Setting, value with unit and interval, notes."""
    low: float | None = None
    """Of the 95 % interval of y."""
    high: float | None = None
    x_low: float | None = None
    """Of the 95 % interval of x."""
    x_high: float | None = None
    noisy: bool = False
    """Drawn hollow: a trial of it was noisy, or failed."""
    ring: bool = False
    """Drawn with a ring: nobody beats it in both x and y."""


@dataclass(frozen=True, slots=True)
class Series:
    """What has one colour and one entry in the legend."""

    name: str
    color: int
    """Number of the backend in the run, the same in every chart; negative for what is no backend."""
    marks: Marks
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot."""

    title: str
    setting: str
    """What all points have in common, in words."""
    choice: str
    """What tells it from the other charts of its group; empty if there are none."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()
    """What is missing and why, and what holds for all points."""

    @property
    def common(self) -> str:
        """Return of the setting what `choice` does not say; empty if that says it all."""
        return self.setting.removeprefix(self.choice).removeprefix(", ")

    @property
    def summary(self) -> str:
        """Return in words what the plot shows, for whoever does not see it."""
        return f"{self.title}: {self.y.title}, against {self.x.title}. {self.setting}. " + "; ".join(
            f"{one.name} {_span([point.y for point in one.points])} {self.y.unit}" for one in self.series
        )


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """Charts that answer one question, each for another setting."""

    key: str
    """Name of its files: lower-case letters, digits and hyphens."""
    title: str
    reading: str
    """How to read it, in a sentence or two."""
    charts: tuple[Chart, ...]


def _span(values: Sequence[float]) -> str:
    low, high = format_significant(min(values)), format_significant(max(values))
    return low if low == high else f"{low} to {high}"


def finite_series(series: Sequence[Series]) -> tuple[Series, ...]:
    """Return the series without points that cannot be drawn on a log axis, and without series that have none."""
    kept = (
        Series(one.name, one.color, one.marks, tuple(point for point in one.points if _drawable(point)))
        for one in series
    )
    return tuple(one for one in kept if one.points)


def _drawable(point: Point) -> bool:
    numbers = (
        point.x,
        point.y,
        *(one for one in (point.low, point.high, point.x_low, point.x_high) if one is not None),
    )
    return all(isfinite(one) for one in numbers) and point.x > 0 and point.y > 0


def shown_name(name: str) -> str:
    """Return a backend's name fit for a plot: one line, and of a long one its end, which tells more."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split()) or "?"
    return plain if len(plain) <= MAX_NAME else "…" + plain[1 - MAX_NAME :]


def spread_ticks(ticks: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """Return at most `MAX_TICKS` of the ticks, evenly chosen, the first and the last among them."""
    if len(ticks) <= MAX_TICKS:
        return tuple(ticks)
    step = (len(ticks) - 1) / (MAX_TICKS - 1)
    return tuple(ticks[round(index * step)] for index in range(MAX_TICKS))
