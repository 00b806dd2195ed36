"""A figure of one backend over payload sizes, and its value between two of them.

Every metric is a time, so that less is better: a throughput is taken as the time per message. Between two sizes both
the time and the size are interpolated on logarithmic axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from typing import Literal

from ipcbench.analysis.summary.cells import CellSummary, Setting, SettingSummary, Summary
from ipcbench.analysis.summary.facts import cpu_estimate, cpu_rounds_ns
from ipcbench.stats.estimates import Estimate, FloatArray, noise_floor_ratio, satterthwaite
from ipcbench.stats.student import student_975

Axis = Literal["latency", "round trip", "throughput", "cpu"]
"""What a curve shows: one-way latency p50, round trip p50 (ns), time per message (s), CPU time per message (ns)."""

EDGE_RATIO = 1.1
"""A size up to this many times outside the measured ones counts as the nearest of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One measured size of a curve."""

    payload_bytes: int
    time: Estimate


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One backend's times over payload sizes."""

    backend: str
    points: tuple[Point, ...]
    """By size; only where there are figures."""


def families(summary: Summary) -> tuple[tuple[SettingSummary, ...], ...]:
    """Return the settings in groups that differ in nothing but the size, each by size."""
    groups = groupby(summary.settings, key=lambda one: _but_size(one.setting))
    return tuple(tuple(sorted(group, key=lambda one: one.setting.payload_bytes)) for _, group in groups)


def estimate_of(cell: CellSummary, axis: Axis) -> Estimate | None:
    """Return a cell's time on an axis, None if it was not measured or too little of it."""
    figures = cell.figures
    if figures is None:
        return None
    if axis == "cpu":
        return cpu_estimate(cell.trials)
    rate = figures.throughput
    per_message = None if rate is None else replace(rate, value=1.0 / rate.value, deviations=-rate.deviations)
    return {"latency": figures.latency_p50, "round trip": figures.round_trip_p50, "throughput": per_message}[axis]


def curves(family: Sequence[SettingSummary], axis: Axis) -> dict[str, Curve]:
    """Return backend → its curve over the sizes of a family, in the order of appearance."""
    points: dict[str, list[Point]] = {}
    for one in family:
        for cell in one.cells:
            time = estimate_of(cell, axis)
            if time is not None:
                points.setdefault(cell.backend, []).append(Point(one.setting.payload_bytes, time))
    return {name: Curve(name, tuple(found)) for name, found in points.items()}


def noise_ratios(summary: Summary) -> dict[Axis, float]:
    """Return by how much a cell measured twice differs, for each axis; 0 where it is not known."""
    cpu = noise_floor_ratio([cpu_rounds_ns(cell.trials) for one in summary.settings for cell in one.cells])
    known = summary.noise_ratios
    return {
        "latency": known.get("latency", 0.0),
        "round trip": known.get("round trip", 0.0),
        "throughput": known.get("throughput", 0.0),
        "cpu": cpu or 0.0,
    }


def neighbours(sizes: Sequence[int], payload_bytes: int) -> tuple[int, int] | None:
    """Return the measured sizes on both sides, twice the same one if it was measured; None outside the range."""
    if not sizes or payload_bytes * EDGE_RATIO < min(sizes) or payload_bytes > EDGE_RATIO * max(sizes):
        return None
    inside = min(max(payload_bytes, min(sizes)), max(sizes))
    return max(one for one in sizes if one <= inside), min(one for one in sizes if one >= inside)


def position(payload_bytes: float) -> float:
    """Return where a size stands on the axis: its logarithm; of none at all, that of one byte."""
    return math.log(max(1.0, payload_bytes))


def share_of(payload_bytes: int, between: tuple[int, int]) -> float:
    """Return how far a size is from the first to the second of its neighbours, 0 to 1."""
    low, high = (position(one) for one in between)
    return min(1.0, max(0.0, (position(payload_bytes) - low) / (high - low))) if high > low else 0.0


def mixed(low: Estimate, high: Estimate, share: float) -> Estimate:
    """Return the geometric mean of two independent estimates with weights 1 − share and share."""
    weights = (1.0 - share, share)
    parts = [
        (weight**2 * one.log_variance, one.degrees) for weight, one in zip(weights, (low, high), strict=True) if weight
    ]
    return Estimate(
        value=math.exp(weights[0] * math.log(low.value) + weights[1] * math.log(high.value)),
        deviations=weights[0] * low.deviations + weights[1] * high.deviations,
        log_variance=sum(variance for variance, _ in parts),
        degrees=satterthwaite(parts),
        rounds_count=min(low.rounds_count, high.rounds_count),
        turns={
            name: weights[0] * low.turns[name][:count] + weights[1] * high.turns[name][:count]
            for name in low.turns.keys() & high.turns.keys()
            # other sizes may have had another number of turns
            for count in [min(len(low.turns[name]), len(high.turns[name]))]
        },
    )


def log_replicates(one: Estimate) -> FloatArray:
    """Return log(replicate), shape (replicates,), spread as widely as the estimate's own interval is."""
    spread = float(one.deviations.std(ddof=1))
    half = student_975(one.degrees) * math.sqrt(one.log_variance)
    scale = half / (student_975(math.inf) * spread) if spread > 0.0 else 0.0
    return math.log(one.value) + scale * one.deviations


def _but_size(setting: Setting) -> tuple[object, ...]:
    return astuple(replace(setting, size=0, payload_bytes=0))
